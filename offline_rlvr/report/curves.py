"""The curves and bars themselves, each drawn into given axes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from offline_rlvr.diagnostics.catalogue import STANDARD_ERROR
from offline_rlvr.evaluation import bootstrap_interval, mean_at_k
from offline_rlvr.report import style
from offline_rlvr.report.record import RunRecord, Series
from offline_rlvr.report.verdict import Comparison

#: More points than this are averaged in equal blocks: the page stays light, the shape stays.
POINTS = 400
#: Standard errors on either side of an estimate.
NORMAL_95 = 1.96

Lines = Sequence[tuple[str, str, str, str]]
DRIFT: Lines = (
    ("drift/abs_log_ratio", "training groups", style.BLUE, "-"),
    ("probe/abs_log_ratio", "probe groups, never trained on", style.VERMILLION, "--"),
)
SPLIT: Lines = (
    ("drift/abs_log_ratio/right", "right responses", style.BLUE, "-"),
    ("drift/abs_log_ratio/wrong", "wrong responses", style.VERMILLION, "--"),
)
K3: Lines = (
    ("drift/k3_behavior_policy", "training groups", style.BLUE, "-"),
    ("probe/k3_behavior_policy", "probe groups, never trained on", style.VERMILLION, "--"),
)
ESS: Lines = (("weights/ess", "last 8 updates", style.BLUE, "-"),)
REFERENCE: Lines = (("reference/k3", "to the active reference", style.GREEN, "-"),)


def draw_accuracy(ax: Axes, run: RunRecord) -> None:
    """mean@n of each set over updates, with its interval as a band."""
    if not run.evaluations:
        style.say_nothing_measured(ax, "no held-out evaluation yet")
        return
    for color, marker, (name, results) in zip(
        style.CYCLE * 9, "osD^vPX" * 9, run.sets().items(), strict=False
    ):
        intervals = [bootstrap_interval(mean_at_k(e.rewards)) for e in results]
        low, value, high = 100 * np.array([(i.low, i.value, i.high) for i in intervals]).T
        x = [e.update for e in results]
        label = f"{name} (mean@{results[-1].n})"
        ax.plot(x, value, color=color, marker=marker, markersize=5, label=label)
        ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        if len(x) == 1:  # a band of one point has no width
            ax.vlines(x, low, high, color=color, alpha=0.5)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    _update_axis(ax)
    ax.legend()


def draw_pass(ax: Axes, comparison: Comparison) -> None:
    """pass@k against k, before and after, with intervals."""
    sides = ((comparison.before, "o", style.GRAY), (comparison.after, "s", style.BLUE))
    for evaluation, marker, color in sides:
        summary = evaluation.summary()
        ks = [int(key[5:]) for key in summary if key.startswith("pass@")]
        rows = [summary[f"pass@{k}"] for k in ks]
        table = np.array([[row["low"], row["value"], row["high"]] for row in rows], float)
        low, value, high = 100 * table.T
        when = "before" if evaluation is comparison.before else f"update {evaluation.update}"
        ax.plot(ks, value, color=color, marker=marker, markersize=5, label=when)
        ax.fill_between(ks, low, high, color=color, alpha=0.18, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    ax.set_xlabel("k")
    ax.legend(loc="lower right")


def draw_drift(ax: Axes, run: RunRecord) -> None:
    """Drift on a log axis with the noise floor."""
    if _draw_lines(ax, run, DRIFT):
        floor = run.first("drift/noise_floor")
        if floor is not None and floor > 0:
            style.level(ax, floor, "noise floor", style.BLACK)
        style.log_axis(ax)
        style.legend_on_top(ax)


def draw_ess(ax: Axes, run: RunRecord) -> None:
    """ESS on a log axis between 1 (no drift) and 1/B (one response carries everything)."""
    if not _draw_lines(ax, run, ESS):
        return
    style.level(ax, 1.0, "1: no drift", style.BLACK)
    if run.responses_in_ess:
        text = f"1/{run.responses_in_ess:,}: one response carries all"
        style.level(ax, 1 / run.responses_in_ess, text, style.RUST)
    style.log_axis(ax)
    ax.set_ylim(top=3.0)  # room above 1 for its label


def draw_histogram(ax: Axes, counts: Sequence[int]) -> None:
    """Groups by number of right responses; the mixed ones in color."""
    ends = {0, len(counts) - 1}
    colors = [style.GRAY if right in ends else style.BLUE for right in range(len(counts))]
    bars = ax.bar(range(len(counts)), counts, color=colors)
    if len(counts) <= 17:
        ax.bar_label(bars, [f"{count:,}" for count in counts], fontsize=8, padding=2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=17))
    ax.set_xlabel("right responses in the group")
    ax.set_ylabel("groups")
    ax.grid(False, axis="x")


def lines(run: RunRecord, wanted: Lines, *, log: bool) -> style.Draw:
    """Draws those that were measured, with a legend if there are several."""

    def draw(ax: Axes) -> None:
        drawn = _draw_lines(ax, run, wanted)
        if drawn and log:
            style.log_axis(ax)
        if drawn > 1:
            style.legend_on_top(ax)

    return draw


def _draw_lines(ax: Axes, run: RunRecord, wanted: Lines) -> int:
    """Draw the measured ones, with a 95 % band where their standard errors were measured, too;
    their number. Says so in the panel when there is none.
    """
    drawn = 0
    for key, label, color, dashes in wanted:
        series = run.series(key)
        if not len(series):
            continue
        x, y = _thinned(series)
        marker = "o" if len(x) <= 12 else None
        ax.plot(x, y, color=color, linestyle=dashes, label=label, marker=marker, markersize=4)
        error = run.series(key + STANDARD_ERROR)
        if len(error) == len(series):
            half = NORMAL_95 * _thinned(error)[1]
            ax.fill_between(x, y - half, y + half, color=color, alpha=0.18, linewidth=0)
        drawn += 1
    if drawn:
        _update_axis(ax)
    else:
        style.say_nothing_measured(ax)
    return drawn


def _thinned(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points, each the mean of a block of neighbors."""
    block = -(-len(series) // POINTS)
    starts = np.arange(0, len(series), block)
    sizes = np.diff(starts, append=len(series))
    x, y = series.updates.astype(float), series.values
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def _update_axis(ax: Axes) -> None:
    ax.set_xlabel("update")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
