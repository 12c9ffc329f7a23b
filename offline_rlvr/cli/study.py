"""`offline-rlvr study`: methods x seeds on one pool."""

from pathlib import Path
from shlex import quote


def study(
    file: Path, *, output: Path | None = None, parallel: int = 1, dry_run: bool = False
) -> None:
    """Train every method of a study with every seed on one pool.

    Prints the plan first, with time and disk from a short pilot. Every run is an ordinary one
    (`run status`, `report`, `resume`); typed again, finished runs are skipped and the rest goes on.

    Parameters
    ----------
    file
        The study's YAML file, e.g. configs/studies/objectives/study.yaml.
    output
        Folder of the runs; by default runs/ and the name of the study's folder.
    parallel
        Runs at a time: each with its share of the CPU cores, and a GPU of its own.
    dry_run
        Print the plan (with the pilot's estimate when the pool is there); train nothing.
    """
    from offline_rlvr.config.study import load_study
    from offline_rlvr.errors import ConfigError
    from offline_rlvr.study import run_study

    if parallel < 1:
        raise ConfigError(f"--parallel {parallel}: expected at least 1")
    plan = load_study(file)
    folder = output or Path("runs") / plan.name
    run_study(plan, folder, parallel=parallel, dry_run=dry_run)
    if not dry_run:
        runs, page = quote(str(folder)), quote(str(folder / "compare"))
        print(f"study: {folder}  (next: offline-rlvr compare {runs} --output {page})")
