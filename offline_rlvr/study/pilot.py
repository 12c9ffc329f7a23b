"""How long a study takes and how much disk it needs, from the first updates of its first run."""

import hashlib
import json
import statistics
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from offline_rlvr.amounts import duration, size
from offline_rlvr.durable import write_file
from offline_rlvr.stream import Plan, read_rows
from offline_rlvr.study.commands import Commands
from offline_rlvr.study.runs import StudyRun

#: The first of them loads kernels and scores the anchors' first window.
UPDATES = 4


@dataclass(frozen=True)
class Pilot:
    """What one short run cost.

    Attributes:
        around_s: Starting, and evaluating twice.
        update_s: A later update, median.
        planned: Updates of a whole pass over the pool.
        checkpoint_bytes: One checkpoint.
        other_bytes: Of everything else, per update.
    """

    around_s: float
    update_s: float
    planned: int
    checkpoint_bytes: int
    other_bytes: float

    @classmethod
    def of(cls, run: StudyRun, pool: Path, commands: Commands) -> "Pilot":
        """What an earlier start of the study measured with this job, or else now."""
        file = run.folder.parent / "logs" / "pilot.json"
        job = [hashlib.sha256(run.config.to_yaml().encode()).hexdigest(), commands.parallel]
        # What is missing or damaged is measured.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            kept = json.loads(file.read_text("utf-8"))
            if kept.pop("job", None) == job:
                return cls(**kept)
        pilot = cls.measure(run, pool, commands)
        write_file(file, json.dumps({"job": job, **asdict(pilot)}).encode(), replace=True)
        return pilot

    @classmethod
    def measure(cls, run: StudyRun, pool: Path, commands: Commands) -> "Pilot":
        """Train a few updates of a run in a folder that is removed again."""
        logs = run.folder.parent / "logs"
        job = logs / "pilot.yaml"
        write_file(job, run.config.to_yaml().encode(), replace=True)
        with TemporaryDirectory(prefix="pilot-", dir=logs) as name:
            folder = Path(name)
            start = time.monotonic()
            given = ["--max-updates", UPDATES, "--logger", "null"]
            commands.run(
                ["train", job, "--pool", pool, "--run", folder, *given], logs / "pilot.log"
            )
            seconds = time.monotonic() - start
            rows = [row["time/update_s"] for row in read_rows(folder / "metrics.jsonl")]
            saved = _size(max((folder / "checkpoints").glob("update-*")))
            return cls(
                around_s=seconds - sum(rows),
                update_s=statistics.median(rows[1:] or rows),
                planned=Plan.load(folder / "plan.parquet").updates,
                checkpoint_bytes=saved,
                other_bytes=(_size(folder) - _size(folder / "checkpoints")) / len(rows),
            )

    def updates(self, run: StudyRun) -> int:
        """Updates that a run will make."""
        return min(self.planned, run.config.train.max_updates or self.planned)

    def seconds(self, run: StudyRun) -> float:
        """Of a whole run."""
        updates, every = self.updates(run), run.config.evaluation.every
        evaluations = 2 if every is None else 1 + -(-updates // every)
        return self.around_s * evaluations / 2 + updates * self.update_s

    def disk(self, run: StudyRun) -> float:
        """Bytes that a finished run takes."""
        kept = run.config.train.keep_checkpoints + run.config.train.keep_best
        return kept * self.checkpoint_bytes + self.updates(run) * self.other_bytes

    def describe(self, runs: list[StudyRun], method: str, parallel: int) -> str:
        """One line about what is still to be done; `method` was the pilot's."""
        seconds = sum(map(self.seconds, runs)) / parallel
        disk = sum(map(self.disk, runs))
        updates = sum(map(self.updates, runs))
        return (
            f"{len(runs)} runs to go, {updates:,} updates in all; about {duration(seconds)} "
            f"with {parallel} at a time, and {size(disk)} of disk (from {UPDATES} updates of "
            f"{method})"
        )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
