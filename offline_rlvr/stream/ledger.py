"""The ledger, one line per applied update, and the proof that every group counted exactly once."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from offline_rlvr.errors import DataError
from offline_rlvr.stream.plan import Plan


def ledger_digest(rows: Iterable[dict[str, Any]], applied: int) -> str:
    """What a checkpoint remembers of ledger lines 1..applied: sha256 of all but their attempts."""
    kept = [{**row, "attempt": None} for row in rows if row["update"] <= applied]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def check_ledger(
    plan: Plan, rows: Iterable[dict[str, Any]], applied: int, digest: str | None = None
) -> None:
    """Prove that updates 1..applied each trained exactly the plan's groups, once and in order.

    Args:
        plan: The stored plan.
        rows: Lines of `ledger.jsonl`; those past `applied` are work that no checkpoint holds yet.
        applied: Number of updates that the surviving weights hold.
        digest: The `ledger_digest` in their checkpoint; None when there is none yet.

    Raises:
        DataError: Naming the first line that does not fit.
    """
    rows = list(rows)
    for expected, row in enumerate(rows, start=1):
        update = row["update"]
        if update != expected:
            raise DataError(f"the ledger has update {update} where update {expected} belongs")
        if row.get("group_ids") != list(plan.groups(update)):
            raise DataError(f"the ledger's update {update} did not train the groups of the plan")
    if len(rows) < applied:
        raise DataError(
            f"the ledger ends at update {len(rows)}, the weights are of update {applied}"
        )
    if digest is not None and ledger_digest(rows, applied) != digest:
        raise DataError(
            f"lines of updates 1 to {applied} in the ledger are not those that the checkpoint "
            "was written with"
        )
