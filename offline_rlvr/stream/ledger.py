"""The ledger, one line per applied update, and the proof that every group counted exactly once."""

from collections.abc import Iterable
from typing import Any

from offline_rlvr.errors import DataError
from offline_rlvr.stream.plan import Plan


def check_ledger(plan: Plan, rows: Iterable[dict[str, Any]], applied: int) -> None:
    """Prove that updates 1..applied each trained exactly the plan's groups, once and in order.

    Args:
        plan: The stored plan.
        rows: Lines of `ledger.jsonl`.
        applied: Number of updates that the surviving weights hold.

    Raises:
        DataError: Naming the first line that does not fit.
    """
    expected = 1
    for row in rows:
        update = row["update"]
        if update != expected:
            raise DataError(f"the ledger has update {update} where update {expected} belongs")
        if tuple(row["group_ids"]) != plan.groups(update):
            raise DataError(f"the ledger's update {update} did not train the groups of the plan")
        expected += 1
    if expected - 1 != applied:
        raise DataError(
            f"the ledger ends at update {expected - 1}, the weights are of update {applied}"
        )
