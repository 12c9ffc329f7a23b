"""The few plain lines that end a run in the terminal."""

from pathlib import Path

from offline_rlvr.report.inert import one_line
from offline_rlvr.report.page import FILE_NAME
from offline_rlvr.report.record import read_run
from offline_rlvr.report.tables import funnel, funnel_notes
from offline_rlvr.report.verdict import Comparison, compare, ending, missing, percent, verdict


def plain_summary(run_dir: Path) -> list[str]:
    """What came of a run: verdict, accuracies, drift, funnel, what is missing, where the page is.

    Args:
        run_dir: The run's folder.

    Returns:
        Lines without markup or control characters.

    Raises:
        DataError: Not a run folder, or a damaged file in it.
    """
    run = read_run(run_dir)
    lines = []
    stages = {row.label: row.groups for row in funnel(run) if not row.part}
    if stages:
        steps = [f"{groups:,} {label}" for label, groups in stages.items()]
        lines.append("Groups: " + " -> ".join(steps))
        lines += funnel_notes(run.part("funnel"))
    comparisons = compare(run)
    for comparison in comparisons:
        lines += _accuracies(comparison, with_mean=len(comparisons) > 1)
    lines += [verdict(run)[1], ending(run), *missing(run)]
    page = run_dir / FILE_NAME
    if page.is_file():
        lines.append(f"Report: {page}")
    return [one_line(line) for line in lines]


def _accuracies(comparison: Comparison, *, with_mean: bool) -> list[str]:
    """mean@n (with one set the verdict says it) and pass@n; the page has the rest."""
    changes = comparison.changes
    shown = [*(changes[:1] if with_mean else []), *changes[1:][-1:]]
    return [
        f"{comparison.before.name} {change.metric}: {percent(change.before)} -> "
        f"{percent(change.after)} ({change.words()})"
        for change in shown
    ]
