"""Where runs stand, told from their folders alone; nothing is loaded, locked or changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from offline_rlvr.config import Config, load_config
from offline_rlvr.errors import ConfigError, DataError, printable
from offline_rlvr.evaluation import best_update, problem_weighted, read_evaluations
from offline_rlvr.lock import writer_of
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.decisions import Decision, decisions_in, stopped_after, told
from offline_rlvr.trainer.folder import RunFolder, checkpoints_of, update_of

State = Literal["complete", "running", "stopped", "new"]


@dataclass(frozen=True)
class RunStatus:
    """One run at one moment.

    Attributes:
        run: Its folder.
        config: Of its last start.
        state: `complete`: every update asked for is applied, or train.stop_when ended it;
            `running`: a process writes it; `stopped`: the same command continues it; `new`: no
            update yet.
        applied: Updates in the ledger; the last of them may not be in a checkpoint yet.
        asked: Updates asked for.
        saved: Update of the newest checkpoint, 0 without one.
        attempts: Starts that applied an update.
        writer: The process at work, or None.
        last: Metrics of the last update.
        accuracy: (update, set, mean) of every evaluation, in order.
        overall: Mean over all problems of the newest evaluated update, or None.
        best: Update after which the mean over all problems was highest, and that mean, or None.
        decisions: (update, decision) of every decision that the ledger holds, in order.
        ended: The one by which train.stop_when ended it, or None.
    """

    run: RunFolder
    config: Config
    state: State
    applied: int
    asked: int
    saved: int
    attempts: int
    writer: str | None
    last: Mapping[str, Any]
    accuracy: tuple[tuple[int, str, float], ...]
    overall: float | None
    best: tuple[int, float] | None
    decisions: tuple[tuple[int, Decision], ...]
    ended: Decision | None

    @classmethod
    def of(cls, path: Path) -> "RunStatus":
        """Read a run's folder.

        Raises:
            DataError: It is not a run, or is damaged.
        """
        run = RunFolder.open(path)
        config = load_config(path / "config.yaml")
        planned = run.facts["plan"]["updates"]
        asked = min(planned, config.train.max_updates or planned)
        # In the other order than a training writes them: what is read later is never behind.
        writer = writer_of(path)
        saved = max(map(update_of, checkpoints_of(run.checkpoints)), default=0)
        ledger = list(read_rows(path / "ledger.jsonl"))
        applied = ledger[-1]["update"] if ledger else 0
        last: Mapping[str, Any] = {}
        for row in read_rows(path / "metrics.jsonl"):
            last = row
        ended = stopped_after(ledger[-1], config.train.stop_when) if ledger else None
        state: State = "new" if not ledger else "stopped"
        if writer is not None:
            state = "running"
        elif saved >= asked or (ended and saved == applied):
            state = "complete"
        evaluations = sorted(read_evaluations(path), key=lambda e: (e.update, e.name))
        accuracy = tuple(
            (e.update, e.name, e.summary()[f"mean@{e.n}"]["value"]) for e in evaluations
        )
        newest = [e for e in evaluations if e.update == evaluations[-1].update]
        overall = problem_weighted(newest)["value"] if newest else None
        return cls(
            run=run,
            config=config,
            state=state,
            applied=applied,
            asked=asked,
            saved=saved,
            attempts=run.next_attempt() - 1,
            writer=writer,
            last=last,
            accuracy=accuracy,
            overall=overall,
            best=best_update(evaluations),
            decisions=decisions_in(ledger),
            ended=ended,
        )

    @property
    def row(self) -> tuple[str, ...]:
        """Name, state, updates, objective, drift, ESS and newest accuracy, for a table."""
        return (
            self.run.path.name,
            self.state,
            f"{self.applied}/{self.asked}",
            str(self.run.facts["objective"]["name"]),
            _number(self.last.get("drift/abs_log_ratio")),
            _number(self.last.get("weights/ess")),
            "-" if self.overall is None else f"{self.overall:.1%}",
        )


#: Names of the columns of `RunStatus.row`.
COLUMNS = ("run", "state", "updates", "objective", "drift", "ess", "accuracy")


#: Decisions that are shown.
SHOWN_LAST = 5

#: Metrics that a line about an update shows.
SHOWN = (
    "train/loss",
    "train/grad_norm",
    "drift/abs_log_ratio",
    "drift/k3_behavior_policy",
    "weights/ess",
)


def list_runs(folder: Path) -> list[tuple[str, ...]]:
    """A row (see `COLUMNS`) of every run directly in a folder, by name; damaged ones are named."""
    if not folder.is_dir():
        return []
    runs = [path for path in sorted(folder.iterdir()) if (path / "run.json").is_file()]
    return [tuple(map(printable, _row(path))) for path in runs]


def _row(path: Path) -> tuple[str, ...]:
    try:
        return RunStatus.of(path).row
    except (DataError, ConfigError):
        return (path.name, "damaged") + ("-",) * (len(COLUMNS) - 2)


def describe(status: RunStatus) -> list[str]:
    """Plain lines about one run."""
    facts = status.run.facts
    lines = [
        f"{status.run.path}: {status.state}"
        + (f" ({status.writer})" if status.writer else "")
        + (f", stopped by train.stop_when after update {status.applied}" if status.ended else "")
        + f", {status.applied} of {status.asked} updates applied, {status.saved} saved, "
        f"{status.attempts} attempt{'' if status.attempts == 1 else 's'}",
        f"objective  {facts['objective']}",
        f"model      {facts['model']['name_or_path']}",
        f"pool       {facts['pool']['path']}, commit {facts['pool']['commit']}",
        f"plan       {facts['plan']['hash'][:12]}: {facts['plan']['updates']} updates of "
        f"{facts['plan']['groups_per_update']} groups",
    ]
    if status.last:
        lines.append(metrics_line(status.last))
    lines += [f"decision   after update {u}, {told(d)}" for u, d in status.decisions[-SHOWN_LAST:]]
    if len(status.decisions) > SHOWN_LAST:
        lines.append(f"decisions  {len(status.decisions)} in all, in ledger.jsonl")
    lines += [
        f"accuracy   {mean:.1%} on {name} after update {u}" for u, name, mean in status.accuracy
    ]
    if status.best is not None:
        lines.append(_best(status.run, *status.best))
    return [printable(line) for line in lines]  # a run's files may come from anywhere


def _best(run: RunFolder, update: int, mean: float) -> str:
    there = {update_of(path): path for path in checkpoints_of(run.checkpoints)}
    where = there.get(update, "its checkpoint was removed (see train.keep_best)")
    return f"best       {mean:.1%} after update {update}: {where}"


def metrics_line(row: Mapping[str, Any]) -> str:
    """One update in one line."""
    known = [f"{name} {_number(row[name])}" for name in SHOWN if name in row]  # numbers only
    return f"update {row['update']:<4}" + ", ".join(known)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "-"
