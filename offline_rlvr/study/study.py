"""A study from its plan to its last run, continued by the same command after any stop."""

from pathlib import Path

from offline_rlvr.config.study import Study
from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.errors import Interrupted, OfflineRlvrError
from offline_rlvr.study.check import check_study
from offline_rlvr.study.commands import Commands
from offline_rlvr.study.pilot import Pilot
from offline_rlvr.study.runs import StudyRun, study_runs


def run_study(study: Study, output: Path, *, parallel: int = 1, dry_run: bool = False) -> None:
    """Print the plan, then train what is not finished.

    Args:
        study: Checked.
        output: Folder of the runs.
        parallel: Runs at a time.
        dry_run: Stop after the plan.

    Raises:
        Interrupted: SIGTERM or Ctrl-C; every process has saved its last update.
        OfflineRlvrError: Runs failed; the last words of the first, and how many.
        ConfigError, DataError: A folder of something else, or of the study as it was before.
    """
    check_study(study)
    runs = study_runs(study, output)
    for run in runs:
        run.refuse_changed()
    left = [run for run in runs if not run.finished]
    print(
        f"study {study.name}: {len(study.methods)} methods ({', '.join(study.methods)}) x "
        f"{len(study.seeds)} seeds on {study.pool}; {len(runs) - len(left)} of {len(runs)} runs "
        "are finished",
        flush=True,
    )
    commands = Commands(parallel)
    for folder in ("logs", "jobs"):
        make_folder(output / folder)
    for run in left:
        write_file(run.job, run.config.to_yaml().encode(), replace=True)
    if not dry_run and left:
        _build_pool(study, output, commands)
    if left and (study.pool / "pool.json").is_file():
        _estimate(runs[0], left, study.pool, commands)
    if dry_run:
        return

    def tell(number: int) -> None:
        run = left[number]
        status = run.status
        accuracy = f", {status.row[-1]}" if status and status.accuracy else ""
        print(f"finished {run.name}{accuracy}", flush=True)

    commands.all([_training(run, study.pool) for run in left], tell)


def _estimate(first: StudyRun, left: list[StudyRun], pool: Path, commands: Commands) -> None:
    """Print what is left to do, by the first run's job, finished or not: it is measured once."""
    try:
        pilot = Pilot.of(first, pool, commands)
    except Interrupted:
        raise
    except OfflineRlvrError as error:
        print(f"{len(left)} runs to go; no estimate, the pilot failed: {error.message}", flush=True)
        return
    print(pilot.describe(left, first.method, commands.parallel), flush=True)


def _build_pool(study: Study, output: Path, commands: Commands) -> None:
    """The pool, finished: a complete one is left as it is."""
    job = output / "jobs" / "pool.yaml"
    write_file(job, study.pool_job.to_yaml().encode(), replace=True)
    commands.run(["pool", "build", job, "--output", study.pool])


def _training(run: StudyRun, pool: Path) -> tuple[list[object], Path]:
    log = run.folder.parent / "logs" / f"{run.name}.log"
    return ["train", run.job, "--pool", pool, "--run", run.folder], log
