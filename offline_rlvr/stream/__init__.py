"""From a pool to updates: the stored plan, and the journals that prove exactly-once. No torch.

The Lightning data module is in `stream.data`.
"""

from offline_rlvr.stream.journal import Journal, read_rows
from offline_rlvr.stream.ledger import check_ledger, ledger_digest
from offline_rlvr.stream.plan import Plan, make_plan

__all__ = ["Journal", "Plan", "check_ledger", "ledger_digest", "make_plan", "read_rows"]
