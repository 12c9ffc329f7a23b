"""From a pool to updates: stored plan, data module, and the journals that prove exactly-once."""

from offline_rlvr.stream.data import PoolData, UpdateData, collate
from offline_rlvr.stream.journal import Journal, read_rows
from offline_rlvr.stream.ledger import check_ledger
from offline_rlvr.stream.plan import Plan, make_plan

__all__ = [
    "Journal",
    "Plan",
    "PoolData",
    "UpdateData",
    "check_ledger",
    "collate",
    "make_plan",
    "read_rows",
]
