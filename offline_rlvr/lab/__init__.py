"""The laboratory: both papers' theory, measured on a tree small enough to enumerate.

Every number is computed by the objectives themselves, through the interface that the trainer uses,
with exact expectations.
"""

from offline_rlvr.lab import ggpo, proximal_kl
from offline_rlvr.lab.bench import Bench
from offline_rlvr.lab.comparison import Curve, cases, compare
from offline_rlvr.lab.flow import Setting, fixed
from offline_rlvr.lab.proximal_kl import Tradeoff, tradeoffs
from offline_rlvr.lab.statement import Statement
from offline_rlvr.lab.tree import Atoms, Tree, totals_of

__all__ = [
    "Atoms",
    "Bench",
    "Curve",
    "Setting",
    "Statement",
    "Tradeoff",
    "Tree",
    "cases",
    "compare",
    "fixed",
    "statements",
    "totals_of",
    "tradeoffs",
]


def statements(bench: Bench) -> list[Statement]:
    """Every statement of both papers that is measured here."""
    checks = (*ggpo.CHECKS, *proximal_kl.CHECKS)
    return [statement for check in checks for statement in check(bench)]
