"""The verbs of the main job: quickstart, train, evaluate, report."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from offline_rlvr.cli.options import Overrides, read_config

#: Comes with the package; `configs/quickstart.yaml` in the repository is the same file.
QUICKSTART_CONFIG = Path(__file__).with_name("quickstart.yaml")


def quickstart(
    *overrides: Overrides,
    pool: Path = Path("pools/quickstart"),
    run: Path = Path("runs/quickstart"),
) -> None:
    """The whole path on the built-in model: pool, GGPO training, evaluation, report.

    Parameters
    ----------
    pool
        Where the pool is made.
    run
        Where the run is written.
    """
    settings = read_config(QUICKSTART_CONFIG, overrides)
    if (run / "report.html").exists():
        _say_summary(run)
        print(
            f"this quickstart is complete; to start over: "
            f"rm -r {shlex.quote(str(pool))} {shlex.quote(str(run))}"
        )
        return
    from offline_rlvr.pool.build import build_pool
    from offline_rlvr.report import render_report
    from offline_rlvr.trainer.run import train as train_run

    print(f"1/3 pool      {pool}", flush=True)
    build_pool(settings, pool)
    print(f"2/3 training  {run}", flush=True)
    train_run(settings, pool, run)
    print("3/3 report", flush=True)
    render_report(run)
    _say_summary(run)


def train(
    config: Path,
    *overrides: Overrides,
    pool: Path,
    run: Path,
    max_updates: int | None = None,
    dry_run: bool = False,
    profile: int | None = None,
) -> None:
    """Train on a pool, each group exactly once; typed again, it continues.

    Parameters
    ----------
    config
        YAML file of the job.
    pool
        The pool's folder.
    run
        The run's folder, e.g. runs/ggpo.
    max_updates
        Stop after this many updates (short for --train.max_updates).
    dry_run
        Print groups, updates, tokens, micro-batches and memory; train nothing.
    profile
        Measure this many updates after the first: where their time and memory go, printed and kept
        in the run's profile.md.
    """
    extra = [] if max_updates is None else ["--train.max_updates", str(max_updates)]
    settings = read_config(config, [*overrides, *extra])
    if dry_run:
        from offline_rlvr.trainer.estimate import estimate

        print("\n".join(estimate(settings, pool)))
        return
    from offline_rlvr.trainer.profile import UpdateProfile
    from offline_rlvr.trainer.run import train as train_run

    profiles = [] if profile is None else [UpdateProfile(profile, run)]
    train_run(settings, pool, run, callbacks=profiles)
    for measured in profiles:
        measured.say_if_none()
    print(f"run: {run}  (next: offline-rlvr report {shlex.quote(str(run))})")


def evaluate(run: Path, *, force: bool = False) -> None:
    """Evaluate a run on the held-out problems: its base, and its checkpoints without a result.

    Those are the newest, the best, and what evaluation.every asks for.

    Parameters
    ----------
    run
        The run's folder.
    force
        Evaluate again what is stored already.
    """
    from offline_rlvr.trainer.evaluate import evaluate_run

    evaluate_run(run, force=force)
    _say_summary(run)


def report(run: Path) -> None:
    """Write the run's report.html and print its closing lines.

    Parameters
    ----------
    run
        The run's folder.
    """
    from offline_rlvr.report import render_report

    render_report(run)
    _say_summary(run)


def _say_summary(run: Path) -> None:
    from offline_rlvr.report import plain_summary

    lines: Sequence[str] = plain_summary(run)
    print("\n".join(lines))
