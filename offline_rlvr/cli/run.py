"""`offline-rlvr run ...`: look after runs; `offline-rlvr resume`: go on with one."""

import shlex
from pathlib import Path

from cyclopts import App

from offline_rlvr.cli import publish
from offline_rlvr.cli.options import Overrides

app = App(name="run", help="Look after runs: what there is, where it stands, what it proves.")


@app.command(name="list")
def list_runs(folder: Path = Path("runs")) -> None:
    """Every run of a folder with its state, updates, drift and accuracy.

    Parameters
    ----------
    folder
        Where the runs lie.
    """
    from offline_rlvr.trainer import status

    rows = [status.COLUMNS, *status.list_runs(folder)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    if len(rows) == 1:
        print(f"no runs in {folder}")


@app.command
def status(run: Path) -> None:
    """Where a run stands, and what to type next.

    Parameters
    ----------
    run
        The run's folder.
    """
    from offline_rlvr.trainer.status import RunStatus, describe

    found = RunStatus.of(run)
    print("\n".join(describe(found)))
    following = {
        "complete": f"offline-rlvr report {shlex.quote(str(run))}",
        "running": f"offline-rlvr run tail {shlex.quote(str(run))}",
    }
    print(
        "next:      " + following.get(found.state, f"offline-rlvr resume {shlex.quote(str(run))}")
    )


@app.command
def tail(run: Path, *, lines: int = 10, follow: bool = False) -> None:
    """The last updates of a run; with --follow, further ones as they come, until it stops.

    Parameters
    ----------
    run
        The run's folder.
    lines
        How many updates.
    follow
        Keep printing while a process writes the run.
    """
    import time

    from offline_rlvr.lock import writer_of
    from offline_rlvr.stream import read_rows
    from offline_rlvr.trainer.folder import RunFolder
    from offline_rlvr.trainer.status import metrics_line

    folder = RunFolder.open(run).path
    shown = 0
    rows = list(read_rows(folder / "metrics.jsonl"))[-lines:] if lines > 0 else []
    while True:
        for row in rows:
            print(metrics_line(row), flush=True)
            shown = row["update"]
        if not follow:
            return
        at_work = writer_of(folder) is not None
        rows = [row for row in read_rows(folder / "metrics.jsonl") if row["update"] > shown]
        if not at_work and not rows:
            return
        time.sleep(0.0 if rows else 1.0)


@app.command
def verify(run: Path) -> None:
    """Prove from the run folder that every group of the plan counted exactly once.

    Parameters
    ----------
    run
        The run's folder.
    """
    from offline_rlvr.trainer.verify import verify_run

    print(verify_run(run))


for _verb in (publish.cost, publish.card, publish.push, publish.export):
    app.command(_verb)


def resume(run: Path, *overrides: Overrides, pool: Path | None = None) -> None:
    """Go on with a run from its own config and pool, whatever ended it.

    Overrides may change what does not change the numbers: train.max_updates (upwards only where an
    anchor's window ends), train.micro_batch_tokens (downwards), train.checkpoint_every,
    train.keep_checkpoints, train.keep_best, train.stop_when (null goes on after an early end),
    train.devices, train.strategy, evaluation.every, evaluation.generation, model.device, logger.
    Any other change is refused (exit code 4, naming each key), and so are another pool, another
    commit of it, and another plan.

    Parameters
    ----------
    run
        The run's folder.
    pool
        Where the pool is now, when it was moved.
    """
    from offline_rlvr.cli.options import parse_overrides
    from offline_rlvr.config import load_config
    from offline_rlvr.trainer.folder import RunFolder
    from offline_rlvr.trainer.run import train

    folder = RunFolder.open(run)
    config = load_config(run / "config.yaml", parse_overrides(overrides))
    train(config, pool or Path(folder.facts["pool"]["path"]), run)
    print(f"run: {run}  (next: offline-rlvr report {shlex.quote(str(run))})")
