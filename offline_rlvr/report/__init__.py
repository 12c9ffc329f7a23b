"""What came of a run or a pool: one HTML page, a few plain lines, a picture for a README."""

from offline_rlvr.report.figures import readme_figure
from offline_rlvr.report.page import render_report
from offline_rlvr.report.pool_page import render_pool
from offline_rlvr.report.terminal import plain_summary

__all__ = ["plain_summary", "readme_figure", "render_pool", "render_report"]
