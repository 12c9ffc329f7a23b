"""The pictures: accuracy, drift, K3, ESS, training curves, and the pool's histogram."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from offline_rlvr.evaluation import Evaluation, bootstrap_interval, mean_at_k
from offline_rlvr.report import style
from offline_rlvr.report.run_folder import RunFolder, Series, read_run
from offline_rlvr.report.style import Figured
from offline_rlvr.report.verdict import Comparison, compare, number, percent

#: More points than this are averaged in equal blocks: the page stays light, the shape stays.
POINTS = 400

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


def readme_figure(run_dir: Path, path: Path) -> None:
    """Accuracy, drift and ESS of a run side by side, as a PNG.

    Args:
        run_dir: The run's folder.
        path: The PNG to write.

    Raises:
        DataError: Not a run folder, or a damaged file in it.
    """
    run = read_run(run_dir)
    draws: dict[str, style.Draw] = {
        "Held-out accuracy": partial(draw_accuracy, run=run),
        "Drift (nats per token)": partial(draw_drift, run=run),
        "Effective sample size": partial(draw_ess, run=run),
    }
    style.picture(draws, path)


def accuracy_figures(run: RunFolder) -> list[Figured]:
    """Accuracy over updates; pass@k over k, before and after."""
    figures = []
    if run.evaluations:
        ends = "; ".join(
            f"{name}: {_mean_words(results[0])}, then {_mean_words(results[-1])}"
            for name, results in run.sets().items()
        )
        figures.append(
            Figured(
                style.panel(partial(draw_accuracy, run=run)),
                "Held-out accuracy over training",
                f"Mean accuracy by update. {ends}",
                "Mean over problems of mean@k; the band is the 95 % interval over problems.",
            )
        )
    for comparison in compare(run):
        if comparison.before.n > 1 and comparison.after.n > 1:
            name = comparison.before.name
            figures.append(
                Figured(
                    style.panel(partial(draw_pass, comparison=comparison)),
                    f"pass@k on {name}, before and after",
                    f"pass@k against k on {name}: the table below has the numbers.",
                    "Chance that one of k responses is right. A gap that closes with k: training "
                    "sharpened what the model could already do.",
                )
            )
    return figures


def drift_figures(run: RunFolder, caption: Callable[[str], str]) -> list[Figured]:
    """Drift, K3, ESS, and the distance to the reference, as far as measured."""
    panels: list[tuple[str, str, style.Draw]] = [
        ("drift/abs_log_ratio", "Drift, nats per token", partial(draw_drift, run=run)),
        ("drift/k3_behavior_policy", "K3, behavior to policy", _lines(run, K3, log=True)),
        ("weights/ess", "Effective sample size (ESS)", partial(draw_ess, run=run)),
        ("drift/abs_log_ratio/right", "Drift by reward", _lines(run, SPLIT, log=True)),
        ("reference/k3", "K3 to the active reference", _lines(run, REFERENCE, log=True)),
    ]
    return [_figured(run, *panel, caption) for panel in panels if len(run.series(panel[0]))]


def training_figures(run: RunFolder, caption: Callable[[str], str]) -> list[Figured]:
    """Loss, gradient norm, entropy, concentration of the Gibbs weights."""
    wanted = {
        "train/loss": ("Loss", style.BLUE, False),
        "train/grad_norm": ("Gradient norm before clipping", style.PURPLE, True),
        "policy/entropy": ("Entropy, nats per token", style.GREEN, False),
        "gibbs/ess_q_median": ("Responses carrying a group's weight (median)", "#b45309", False),
    }
    figures = []
    for key, (title, color, log) in wanted.items():
        if len(run.series(key)):
            draw = _lines(run, [(key, title, color, "-")], log=log)
            figures.append(_figured(run, key, title, draw, caption))
    return figures


def pool_figure(run: RunFolder) -> Figured | None:
    """How many responses of a sampled group were right."""
    counts = run.part("funnel").get("correct_per_group")
    if not counts:
        return None
    words = ", ".join(f"{right} right: {groups:,}" for right, groups in enumerate(counts))
    return Figured(
        style.panel(partial(draw_histogram, counts=counts)),
        "Right responses per sampled group",
        f"Number of groups by right responses. {words}",
        "Only mixed groups (not at either end) can teach anything; the ends are kept as evidence.",
    )


def draw_accuracy(ax: Axes, run: RunFolder) -> None:
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


def draw_drift(ax: Axes, run: RunFolder) -> None:
    """Drift on a log axis with the noise floor."""
    if _draw_lines(ax, run, DRIFT):
        floor = run.first("drift/noise_floor")
        if floor is not None and floor > 0:
            style.level(ax, floor, "noise floor", style.BLACK)
        style.log_axis(ax)
        ax.legend(loc="best")


def draw_ess(ax: Axes, run: RunFolder) -> None:
    """ESS on a log axis between 1 (no drift) and 1/B (one response carries everything)."""
    if not _draw_lines(ax, run, ESS):
        return
    style.level(ax, 1.0, "1: no drift", style.BLACK, below=True)
    if run.responses_in_ess:
        text = f"1/{run.responses_in_ess:,}: one response carries all"
        style.level(ax, 1 / run.responses_in_ess, text, "#b84300")
    style.log_axis(ax)


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


def _lines(run: RunFolder, lines: Lines, *, log: bool) -> style.Draw:
    def draw(ax: Axes) -> None:
        drawn = _draw_lines(ax, run, lines)
        if drawn and log:
            style.log_axis(ax)
        if drawn > 1:
            ax.legend()

    return draw


def _draw_lines(ax: Axes, run: RunFolder, lines: Lines) -> int:
    """Draw the measured ones; their number. Says so in the panel when there is none."""
    drawn = 0
    for key, label, color, dashes in lines:
        series = run.series(key)
        if not len(series):
            continue
        x, y = _thinned(series)
        marker = "o" if len(x) <= 12 else None
        ax.plot(x, y, color=color, linestyle=dashes, label=label, marker=marker, markersize=4)
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


def _figured(
    run: RunFolder, key: str, title: str, draw: style.Draw, caption: Callable[[str], str]
) -> Figured:
    series = run.series(key)
    alt = f"{title}: {number(float(series.values[0]))} at update {series.updates[0]}, "
    alt += f"{number(series.last)} at update {series.updates[-1]}"
    return Figured(style.panel(draw), title, alt, caption(key))


def _mean_words(evaluation: Evaluation) -> str:
    summary = evaluation.summary()
    mean = summary[f"mean@{summary['responses_per_problem']}"]
    return f"{percent(mean['value'])} at update {summary['update']}"
