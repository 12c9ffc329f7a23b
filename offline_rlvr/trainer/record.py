"""What a run writes down: ledger and metrics every update, response rows every checkpoint."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from offline_rlvr.durable import make_folder, remove_leftovers, write_file, writing
from offline_rlvr.stream import Journal
from offline_rlvr.trainer.decisions import Decision, best_kept, keep_best
from offline_rlvr.trainer.loggers import Curves
from offline_rlvr.trainer.response_files import RESPONSE_SCHEMA

#: (group ids [G], name -> [G, K]) of one micro-batch.
ResponseRows = tuple[Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class UpdateResult:
    """One applied update.

    Attributes:
        update: Its number.
        group_ids: What it trained on, in plan order.
        tokens: Response tokens.
        metrics: Keys of the diagnostics catalogue.
        records: Of each micro-batch.
        decisions: What its metrics decided (`trainer.decisions`).
    """

    update: int
    group_ids: list[int]
    tokens: int
    metrics: dict[str, float]
    records: list[ResponseRows]
    decisions: list[Decision] = field(default_factory=list)


class Recorder:
    """Writes applied updates into a run folder and to Lightning loggers.

    Args:
        run: The run folder.
        attempt: Which start of the run this is, for the ledger.
    """

    def __init__(self, run: Path, attempt: int):
        self.ledger = Journal(run / "ledger.jsonl")
        self.metrics = Journal(run / "metrics.jsonl")
        self.responses = run / "responses"
        self.attempt = attempt
        self.curves = Curves()
        self._pending: list[dict[str, Any]] = []
        self._between: list[Decision] = []
        self._last = time.monotonic()

    def rewind(self, applied: int) -> int:
        """Drop what no checkpoint holds; returns how many updates will be done again."""
        late = self.ledger.rewind(applied, self.ledger.path.with_name("ledger.discarded.jsonl"))
        self.metrics.rewind(applied)
        for folder in (self.responses, self.responses.with_name("evaluations")):
            remove_leftovers(folder)
            for path in folder.glob("*.parquet"):
                last = re.search(r"-(\d{6})$", path.stem)  # else it is not ours
                if last and int(last[1]) > applied:
                    with writing(path):
                        path.unlink()
        return late

    def keep_best(self, best: tuple[int, float] | None) -> None:
        """Have the next line say which checkpoint is kept for its accuracy, where that is news.

        Args:
            best: Its update and accuracy; None: none is kept.
        """
        self._between = []
        if best is not None and best[0] != best_kept(self.ledger.rows()):
            self._between = [keep_best(*best)]

    def __call__(self, result: UpdateResult) -> None:
        """Write one update: metrics first, then the ledger line that acknowledges it."""
        now = time.monotonic()
        metrics = {**result.metrics, "time/update_s": now - self._last}
        self._last = now
        self.metrics.append({"update": result.update, **metrics})
        line = {
            "update": result.update,
            "attempt": self.attempt,
            "group_ids": result.group_ids,
            "tokens": result.tokens,
            "loss": metrics["train/loss"],
            "grad_norm": metrics["train/grad_norm"],
        }
        decisions = [*self._between, *result.decisions]
        self._between = []
        self.ledger.append(line | ({"decisions": decisions} if decisions else {}))
        self.curves.add_update(result.update, metrics)
        for group_ids, columns in result.records:
            self._pending += _rows(result.update, group_ids, columns)

    def flush(self) -> None:
        """Publish the response rows since the last flush as one Parquet file."""
        if not self._pending:
            return
        make_folder(self.responses)
        first, last = self._pending[0]["update"], self._pending[-1]["update"]
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(self._pending, schema=RESPONSE_SCHEMA)
        pq.write_table(table, sink, compression="zstd")
        path = self.responses / f"updates-{first:06d}-{last:06d}.parquet"
        write_file(path, sink.getvalue().to_pybytes(), replace=True)
        self._pending = []


def _rows(update: int, group_ids: Tensor, columns: dict[str, Tensor]) -> list[dict[str, Any]]:
    values = {name: column.tolist() for name, column in columns.items()}
    return [
        {"update": update, "group_id": group_id, "index": index}
        | {name: column[g][index] for name, column in values.items()}
        for g, group_id in enumerate(group_ids.tolist())
        for index in range(len(values["reward"][g]))
    ]
