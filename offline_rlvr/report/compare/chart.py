"""One chart: the numbers of its lines, how they are drawn, and what a CSV file of them holds."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from offline_rlvr.report import style

#: `lines`: y over x; `rows`: a mark for each named x, one below another; `points`: a scatter.
Kind = Literal["lines", "rows", "points"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        label: Its name in the legend.
        look: Number of its color, dash and marker; None: the base model's gray.
        x: Numbers, or names of categories.
        y: Same length; nan leaves a gap.
        low, high: Ends of its band or whiskers, where it has one.
    """

    label: str
    look: int | None
    x: Sequence[float] | Sequence[str]
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Level:
    """A horizontal line that says what it is."""

    value: float
    text: str
    color: str = style.BLACK


@dataclass(frozen=True)
class Chart:
    """A figure of the page, its PNG and its CSV file.

    Attributes:
        key: Name of its files.
        title, reading: Its heading, and how to read it.
        x_name, y_name: Names of the axes, and of the columns of the CSV file.
        lines: What is drawn.
        log_x, log_y: Logarithmic axes (`log_x` with base 2 for k).
        share: The values are shares, drawn as percents.
        levels: Horizontal lines.
    """

    key: str
    title: str
    reading: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    kind: Kind = "lines"
    log_x: Literal[0, 2, 10] = 0
    log_y: bool = False
    share: bool = False
    levels: Sequence[Level] = ()

    def as_csv(self) -> str:
        """One row for each point: line, x, y and, where there are any, low and high."""
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(["line", self.x_name, self.y_name, "low", "high"])
        for line in self.lines:
            nothing = [""] * len(line.y)
            low = nothing if line.low is None else line.low.tolist()
            high = nothing if line.high is None else line.high.tolist()
            points = zip(line.x, line.y.tolist(), low, high, strict=True)
            writer.writerows([line.label, *point] for point in points)
        return sink.getvalue()

    def draw(self, ax: Axes) -> None:
        """Into given axes; the legend is the figure's."""
        if self.kind == "rows":
            _draw_rows(ax, self)
            return
        for line in self.lines:
            _draw_line(ax, self, line)
        for level in self.levels:
            style.level(ax, level.value, level.text, level.color)
        if self.log_y:
            _crop(ax, self)
            style.log_axis(ax)
        if self.share:
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        _label_x(ax, self)


def _look(line: Line) -> dict[str, Any]:
    if line.look is None:
        return {"color": style.GRAY, "linestyle": "-", "marker": "x"}
    return {
        "color": style.CYCLE[line.look % len(style.CYCLE)],
        "linestyle": ("-", "--", ":", "-.")[line.look // len(style.CYCLE) % 4],
        "marker": "osD^vPX*"[line.look % 8],
    }


def _drawable(text: str) -> str:
    r"""The same with what the figures' font may lack written as `\u4e2d`."""
    return text.encode("ascii", "backslashreplace").decode()


def _values(chart: Chart, values: Floats) -> Floats:
    return 100 * values if chart.share else values


def _draw_line(ax: Axes, chart: Chart, line: Line) -> None:
    y, look = _values(chart, line.y), _look(line)
    named = bool(len(line.x)) and isinstance(line.x[0], str)
    x = np.arange(len(line.x)) if named else np.asarray(line.x, float)
    if chart.kind == "points":
        ax.plot(
            x, y, **{**look, "linestyle": ""}, markersize=4, alpha=0.7, label=_drawable(line.label)
        )
        return
    # Few marks on a long line, not at the same place on each, so that they can be told apart.
    step = max(1, len(x) // 6)
    every = ((line.look or 0) * step // 4 % step, step)
    ax.plot(x, y, **look, markersize=5, markevery=every, label=_drawable(line.label))
    if line.low is not None and line.high is not None and len(x) > 1:
        low, high = _values(chart, line.low), _values(chart, line.high)
        ax.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
    if named:
        ax.set_xticks(x, [_drawable(str(name)) for name in line.x], fontsize=8)


def _draw_rows(ax: Axes, chart: Chart) -> None:
    """Categories from top to bottom, the lines of one category slightly apart."""
    names = list(chart.lines[0].x)
    for i, line in enumerate(chart.lines):
        look = _look(line)
        at = np.arange(len(names)) + (i - (len(chart.lines) - 1) / 2) * 0.25
        y = _values(chart, line.y)
        if line.low is not None and line.high is not None:
            low, high = _values(chart, line.low), _values(chart, line.high)
            ax.hlines(at, low, high, color=look["color"], linewidth=1.8)
        ax.plot(
            y,
            at,
            color=look["color"],
            marker=look["marker"],
            linestyle="",
            markersize=6,
            label=_drawable(line.label),
        )
    for level in chart.levels:
        value = float(_values(chart, np.array(level.value)))
        ax.axvline(value, color=level.color, linestyle=":", linewidth=1.5)
        ax.annotate(
            level.text,
            (value, 0.99),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            va="top",
            color=level.color,
        )
    ax.set_yticks(np.arange(len(names)), [_drawable(str(name)) for name in names], fontsize=8)
    ax.set_ylim(len(names) - 0.4, -1.0 if chart.levels else -0.6)
    ax.grid(False, axis="y")
    if chart.log_y:
        style.log_axis(ax, "x")
    else:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    ax.set_xlabel(chart.y_name)


def _crop(ax: Axes, chart: Chart) -> None:
    """Leave out the untouched policy of update 1, whose drift of 1e-7 would flatten all others; a
    level below the axis is named at its bottom.
    """
    untouched = [chart.x_name == "update" and line.x[0] == 1 for line in chart.lines]
    drawn = [line.y[int(skip) :] for line, skip in zip(chart.lines, untouched, strict=True)]
    values = np.concatenate(drawn)
    values = values[values > 0]
    if not len(values):
        return
    low, high = float(values.min()) / 1.3, float(values.max()) * 1.4
    above = [level.value for level in chart.levels if level.value > low / 30]
    low, high = min([low, *(v / 1.3 for v in above)]), max([high, *(v * 1.6 for v in above)])
    ax.set_ylim(low, high)
    for level in chart.levels:
        if level.value < low:
            ax.texts[-1].remove()
            ax.annotate(
                f"{level.text}: far below, at {level.value:.1g}",
                (0.98, 0.02),
                xycoords="axes fraction",
                ha="right",
                va="bottom",
                fontsize=8,
                color=level.color,
            )


def _label_x(ax: Axes, chart: Chart) -> None:
    ax.set_xlabel(chart.x_name)
    ax.set_ylabel("")
    if chart.log_x == 10:
        style.log_axis(ax, "x")
    elif chart.log_x:
        ax.set_xscale("log", base=chart.log_x)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif chart.lines and not isinstance(chart.lines[0].x[0], str):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
