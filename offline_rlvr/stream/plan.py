"""Which groups each update trains on: a pure function of (pool hash, selection, seed), stored.

Every method trained with the same seed on the same selection of the same pool sees the same groups
in the same order; `max_updates` only stops earlier, it never changes the order.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.durable import write_file
from offline_rlvr.errors import ConfigError, DataError

PLAN_SCHEMA = pa.schema(
    [("update", pa.int32()), ("slot", pa.int32()), ("group_id", pa.int64())],
)


@dataclass(frozen=True)
class Plan:
    """The groups of every update.

    Attributes:
        group_ids: [groups] in training order, each id once.
        groups_per_update: Groups of a full update; the last update takes what is left.
        unused: Ids of the selection that no update trains on (only with `drop_last`).
    """

    group_ids: tuple[int, ...]
    groups_per_update: int
    unused: tuple[int, ...] = ()

    @property
    def updates(self) -> int:
        """Number of updates, the last short one included."""
        return -(-len(self.group_ids) // self.groups_per_update)

    def groups(self, update: int) -> tuple[int, ...]:
        """Group ids of update 1, 2, ..., `updates`."""
        if not 1 <= update <= self.updates:
            raise DataError(f"update {update} is not in this plan of {self.updates} updates")
        start = (update - 1) * self.groups_per_update
        return self.group_ids[start : start + self.groups_per_update]

    @property
    def hash(self) -> str:
        """Identity of the plan: sha256 of order and update size."""
        text = json.dumps([self.groups_per_update, self.group_ids, self.unused])
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write `plan.parquet` atomically; unused groups have update 0."""
        updates = [slot // self.groups_per_update + 1 for slot in range(len(self.group_ids))]
        slots = [slot % self.groups_per_update for slot in range(len(self.group_ids))]
        table = pa.table(
            {
                "update": updates + [0] * len(self.unused),
                "slot": slots + list(range(len(self.unused))),
                "group_id": [*self.group_ids, *self.unused],
            },
            schema=PLAN_SCHEMA,
        ).replace_schema_metadata({"groups_per_update": str(self.groups_per_update)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_file(path, sink.getvalue().to_pybytes(), replace=True)

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read `plan.parquet`; DataError when it is damaged or not a plan."""
        try:
            table = pq.read_table(path)
            size = int((table.schema.metadata or {})[b"groups_per_update"])
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise DataError(
                f"the plan {path} cannot be read: {error}",
                hint="it is written once when a run starts; start a new run under another name",
            ) from error
        rows = list(
            zip(*(table.column(name).to_pylist() for name in PLAN_SCHEMA.names), strict=True)
        )
        trained = [row for row in rows if row[0] > 0]
        plan = cls(
            tuple(row[2] for row in trained), size, tuple(row[2] for row in rows if row[0] == 0)
        )
        order = [(slot // size + 1, slot % size) for slot in range(len(trained))]
        if [row[:2] for row in trained] != order or len(set(plan.group_ids)) != len(trained):
            raise DataError(
                f"the plan {path} does not hold each update's slots in order, each group once"
            )
        return plan


def make_plan(
    group_ids: Sequence[int],
    *,
    pool_hash: str,
    seed: int,
    groups_per_update: int,
    drop_last: bool = False,
) -> Plan:
    """Shuffle the selected groups and cut them into updates.

    Args:
        group_ids: The selection, any order.
        pool_hash: Identity of the pool.
        seed: Order seed (`train.seed`).
        groups_per_update: Groups per optimizer step.
        drop_last: Leave out a last update that is not full; its groups are listed as unused.

    Raises:
        ConfigError: No group, or fewer than one full update with `drop_last`.
    """
    ids = sorted(int(group_id) for group_id in group_ids)
    if len(set(ids)) != len(ids):
        raise DataError("the selection holds a group twice")
    keep = len(ids) - len(ids) % groups_per_update if drop_last else len(ids)
    if keep == 0:
        raise ConfigError(
            f"the selection has {len(ids)} groups; at least "
            f"{groups_per_update if drop_last else 1} are needed for one update",
            hint="build a larger pool, or lower train.groups_per_update",
        )
    identity = json.dumps([pool_hash, ids, seed])
    entropy = int.from_bytes(hashlib.sha256(identity.encode()).digest(), "big")
    order = np.random.Generator(np.random.PCG64(entropy)).permutation(len(ids))
    shuffled = tuple(ids[index] for index in order)
    return Plan(shuffled[:keep], groups_per_update, tuple(sorted(shuffled[keep:])))
