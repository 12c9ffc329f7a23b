"""Runs of several methods on one pool, side by side: who is better, how sure, how far each moved.

`methods` reads runs and refuses what cannot be compared; `standings` has the numbers and the
sentences; the two `*_charts` say what is drawn, `chart` draws it; `tables` and
`page` write it down.
"""

from offline_rlvr.report.compare.page import Compared, compare_runs

__all__ = ["Compared", "compare_runs"]
