"""How every figure looks: colors that color-blind readers can tell apart, plain axes."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

Draw = Callable[[Axes], None]

#: Okabe and Ito's palette, without the yellow that paper swallows.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#000000"
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
#: Darker than the palette's vermillion, for thin lines and small text.
RUST = "#b84300"
GRAY = "#6b7280"

#: Inches. A panel is read at the width of a phone: few, large marks.
PANEL = (4.7, 3.0)
#: Left, bottom, width and height of the axes in a panel; leaves room for `0.0001` and a label.
INSIDE = (0.15, 0.165, 0.82, 0.79)

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "text.parse_math": False,  # a set's name is data, not a formula
    "svg.hashsalt": "offline-rlvr",  # same run, same bytes
    "svg.fonttype": "path",  # the reader's fonts do not matter
}


@dataclass(frozen=True)
class Figured:
    """A figure for the page: an SVG as a data URI, its words, and what it shows."""

    uri: str
    title: str
    alt: str
    caption: str


def panel(draw: Draw) -> str:
    """One panel as a data URI of an SVG."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=PANEL)
        draw(figure.add_axes(INSIDE))  # the same place in every panel, so that columns line up
        return data_uri(_saved(figure, "svg"))


def data_uri(svg: bytes) -> str:
    """An SVG as an address that needs no file."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")


def picture(draws: dict[str, Draw], *paths: Path, legend: bool = False) -> None:
    """Panels side by side under their titles, as PNG or SVG by the paths' suffixes.

    Args:
        draws: Title -> what draws the panel.
        paths: Where to write.
        legend: One legend below all panels, of the first panel's labels.
    """
    with mpl.rc_context(RC):
        size = (4.2 * len(draws), 4.4 if legend else 3.3)
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = figure.subplots(1, len(draws), squeeze=False, sharey=legend)[0]
        for ax, (title, draw) in zip(axes, draws.items(), strict=True):
            ax.set_title(title)
            draw(ax)
        if legend:
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=6, handlelength=3)
        for path in paths:
            path.write_bytes(_saved(figure, path.suffix[1:]))


def log_axis(ax: Axes, which: Literal["x", "y"] = "y") -> None:
    """A logarithmic axis with plain numbers, also where it spans less than a decade.

    Stays linear where nothing is above 0, as in a run that does not move.
    """
    get = "get_ydata" if which == "y" else "get_xdata"
    drawn = [np.asarray(getattr(line, get)(), float) for line in ax.get_lines()]
    if not any((values > 0).any() for values in drawn):
        return
    axis = ax.yaxis if which == "y" else ax.xaxis
    ax.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    if high / low < 3:  # room for at least two labeled ticks
        middle = (low * high) ** 0.5
        low, high = middle / 3**0.5, middle * 3**0.5
        ax.set(**{f"{which}lim": (low, high)})
    close = high / low < 30
    subs = (1, 2, 3, 5, 7) if high / low < 6 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=subs if close else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def legend_on_top(ax: Axes) -> None:
    """A legend in room of its own above the curves, where it covers neither them nor a level."""
    low, high = ax.get_ylim()
    if ax.get_yscale() == "log":
        ax.set_ylim(low, high * (high / low) ** 0.3)
    else:
        ax.set_ylim(low, high + 0.3 * (high - low))
    ax.legend(loc="upper left")


def level(ax: Axes, value: float, text: str, color: str) -> None:
    """A dotted horizontal line that says what it is."""
    ax.axhline(value, color=color, linestyle=":", linewidth=1.5)
    ax.annotate(
        text,
        (0.98, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        color=color,
    )


def say_nothing_measured(ax: Axes, what: str = "not measured") -> None:
    """An empty panel that says so."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, what, ha="center", va="center", transform=ax.transAxes, color=GRAY)


def chart(draw: Draw, height: float, *kinds: str) -> list[bytes]:
    """One panel with a legend below it, in each of the given formats (`svg`, `png`).

    Args:
        draw: What draws the panel; its labels make the legend where there are several.
        height: Of the axes, inches; the legend takes more.
        kinds: File formats.
    """
    with mpl.rc_context(RC):
        figure = Figure(figsize=(PANEL[0], height), layout="constrained", facecolor="white")
        ax = figure.add_subplot()
        draw(ax)
        handles, labels = ax.get_legend_handles_labels()
        if len(labels) > 1:
            columns = max(1, min(3, 52 // (max(map(len, labels)) + 6)))
            figure.set_figheight(height + 0.2 * -(-len(labels) // columns) + 0.1)
            place = {"loc": "outside lower center", "ncols": columns, "fontsize": 8}
            figure.legend(handles, labels, handlelength=2.6, columnspacing=1.2, **place)
        return [_saved(figure, kind) for kind in kinds]


def _saved(figure: Figure, kind: str) -> bytes:
    sink = io.BytesIO()
    metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(sink, format=kind, dpi=150, metadata=metadata)
    return sink.getvalue()
