"""What runs cost: sampling their pool, once for all of them, against training each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_rlvr.amounts import duration
from offline_rlvr.pool.timing import Timing, read_timing
from offline_rlvr.report.record import read_run
from offline_rlvr.stream import read_rows


@dataclass(frozen=True)
class RunCost:
    """One run's cost. Tokens are response tokens; hours are wall time of the machine at work.

    Attributes:
        run: Its name.
        pool: The pool's folder.
        pool_hash: What tells pools apart.
        sampled_tokens: Of the whole pool, used or not.
        timing: How much of the pool's sampling was timed; zero when the pool is not there.
        trained_tokens: Of every applied update, those done again after a crash included.
        training_hours: Of the updates that the weights hold, evaluations and checkpoints included.
        evaluation_tokens: Of the answers in the stored evaluations; the base's may come from an
            earlier run.
    """

    run: str
    pool: Path
    pool_hash: str
    sampled_tokens: int
    timing: Timing
    trained_tokens: int
    training_hours: float
    evaluation_tokens: int

    @classmethod
    def of(cls, path: Path) -> "RunCost":
        """Read a run's folder, and its pool's where it still is.

        Raises:
            DataError: Not a run, or damaged.
        """
        run = read_run(path)
        pool = Path(str(run.part("pool").get("path")))
        ledgers = (path / "ledger.jsonl", path / "ledger.discarded.jsonl")
        rows = [row for ledger in ledgers for row in read_rows(ledger)]
        return cls(
            run.name,
            pool,
            str(run.part("pool").get("hash")),
            int(run.part("funnel").get("response_tokens") or 0),
            read_timing([pool]),
            sum(int(row["tokens"]) for row in rows),
            float(run.series("time/update_s").values.sum()) / 3600,
            sum(int(e.lengths.sum()) for e in run.evaluations),
        )

    @property
    def sampling_hours(self) -> float | None:
        """Of the whole pool, at the measured tokens per second; None when nothing was timed."""
        if not self.timing.tokens:
            return None
        return self.timing.seconds / 3600 * self.sampled_tokens / self.timing.tokens

    def lines(self) -> list[str]:
        """The cost of this run alone, in plain words."""
        return [
            f"sampling the pool, once for all runs: {self.sampled_tokens:,} response tokens, "
            + _time(self.sampling_hours),
            f"training: {self.trained_tokens:,} response tokens, {_time(self.training_hours)}",
            f"held-out evaluation: {self.evaluation_tokens:,} response tokens "
            "(the base's may be an earlier run's)",
        ]


def format_costs(costs: Sequence[RunCost]) -> list[str]:
    """A block per pool: its cost, then each run's own and with an equal share of the pool."""
    lines: list[str] = []
    for pool_hash in dict.fromkeys(cost.pool_hash for cost in costs):
        runs = [cost for cost in costs if cost.pool_hash == pool_hash]
        first, count = runs[0], len(runs)
        hours = first.sampling_hours
        lines += [
            f"pool {first.pool} ({pool_hash[:12]}): {first.sampled_tokens:,} response tokens "
            f"sampled, {_time(hours)}; shared by {count} run{'' if count == 1 else 's'}"
        ]
        rows: list[tuple[str, ...]] = [
            ("run", "trained tokens", "training", "pool share", "in all")
        ]
        for cost in runs:
            share = None if hours is None else hours / count
            total = None if share is None else cost.training_hours + share
            cells = (_time(cost.training_hours), _time(share), _time(total))
            rows.append((cost.run, f"{cost.trained_tokens:,}", *cells))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
    return lines


def _time(hours: float | None) -> str:
    return "time not recorded" if hours is None else duration(3600 * hours)
