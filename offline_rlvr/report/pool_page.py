"""One self-contained HTML page about a pool: what was sampled, how right it is, how long."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.pool import GroupArrays, Pool, selection
from offline_rlvr.report import style, tables
from offline_rlvr.report.examples import Side
from offline_rlvr.report.figures import pool_figure
from offline_rlvr.report.inert import shortened
from offline_rlvr.report.page import fill_template
from offline_rlvr.report.style import Figured
from offline_rlvr.report.verdict import percent

#: Groups shown with a right and a wrong response.
EXAMPLES = 8
#: Bins of the histogram of lengths.
BINS = 40


def render_pool(pool: Pool, funnel: Mapping[str, Any], path: Path) -> None:
    """Write the page.

    Args:
        pool: The pool, opened with the grades to show.
        funnel: Its numbers, see `pool.summary.funnel`.
        path: The file to make or replace.

    Raises:
        DataError: A row of the pool is damaged.
        ResourceError: The page cannot be written.
    """
    make_folder(path.parent)
    text = fill_template("pool.html.jinja", content(pool, funnel))
    write_file(path, text.encode("utf-8"), replace=True)


def content(pool: Pool, funnel: Mapping[str, Any]) -> dict[str, Any]:
    """Everything the template shows."""
    responses = funnel["sampled_responses"]
    statuses = [
        (name, count, percent(count / responses)) for name, count in funnel["statuses"].items()
    ]
    settings = {**pool.identity, "verifier": pool.verifier_id, "pool hash": pool.hash}
    return {
        "name": pool.path.resolve().name,
        "subtitle": f"{len(pool):,} groups of {pool.group_size} responses at commit {pool.commit}",
        "stages": tables.stages(funnel),
        "notes": tables.funnel_notes(funnel),
        "figures": _figures(pool, funnel),
        "rates": _rates(funnel),
        "lengths": _lengths(funnel),
        "statuses": statuses,
        "examples": [_example(group) for group in _shown(pool)],
        "settings": tables.flattened(settings),
    }


def _rates(funnel: Mapping[str, Any]) -> list[tuple[str, str]]:
    rates = {f"mean@{funnel['group_size']}": funnel["mean_at_k"]}
    rates |= {f"pass@{k}": value for k, value in funnel["pass_at"].items()}
    return [(name, percent(value)) for name, value in rates.items()]


def _lengths(funnel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Quantiles in tokens, a row for each kind of text."""
    kinds = {"prompts": "prompt", "right responses": "right", "wrong responses": "wrong"}
    found = {label: funnel[f"{kind}_lengths"] for label, kind in kinds.items()}
    return [
        {"label": label, "quantiles": {name: f"{value:,.0f}" for name, value in values.items()}}
        for label, values in found.items()
        if values
    ]


def _figures(pool: Pool, funnel: Mapping[str, Any]) -> list[Figured]:
    if not len(pool):
        return []
    histogram = pool_figure(funnel)
    rates = ", ".join(f"{name} {value}" for name, value in _rates(funnel))
    return [
        *([histogram] if histogram else []),
        Figured(
            style.panel(partial(_draw_pass, pass_at=funnel["pass_at"])),
            "pass@k of the behavior policy",
            f"pass@k against k: {rates}",
            "Mean over the fully scored problems; unbiased.",
        ),
        Figured(
            style.panel(partial(_draw_lengths, pool=pool)),
            "Response lengths",
            "Share of the right and of the wrong responses by tokens; the table has quantiles.",
            "Wrong responses that pile up at the limit were cut, not answered.",
        ),
    ]


def _draw_pass(ax: Axes, pass_at: Mapping[str, float | None]) -> None:
    values = {int(k): 100 * value for k, value in pass_at.items() if value is not None}
    if not values:
        style.say_nothing_measured(ax, "no fully scored group")
        return
    ax.plot(list(values), list(values.values()), color=style.BLUE, marker="o", markersize=5)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    ax.set_xlabel("k")


def _draw_lengths(ax: Axes, pool: Pool) -> None:
    index = pool.index
    wrong = ~index.correct & ~np.isnan(index.rewards)
    sides = (("right", index.correct, style.BLUE, "-"), ("wrong", wrong, style.VERMILLION, "--"))
    low, high = int(index.response_lengths.min()), int(index.response_lengths.max())
    width = -(-(high - low + 1) // BINS)  # whole tokens
    edges = np.arange(low, high + width + 1, width) - 0.5
    for label, chosen, color, dash in sides:
        lengths = index.response_lengths[chosen]
        if len(lengths):
            shares = 100 * np.histogram(lengths, edges)[0] / len(lengths)
            ax.stairs(shares, edges, color=color, linestyle=dash, linewidth=1.8, label=label)
    if not ax.patches:
        style.say_nothing_measured(ax, "no scored response")
        return
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    ax.set_xlabel("tokens")
    style.legend_on_top(ax)


def _shown(pool: Pool) -> list[GroupArrays]:
    """Mixed groups at equal distances, none picked for what it says."""
    ids = selection.mixed(pool)
    if not len(ids):
        return []
    places = np.unique(np.linspace(0, len(ids) - 1, min(EXAMPLES, len(ids))).astype(int))
    return pool.read(ids[places])


def _example(group: GroupArrays) -> dict[str, Any]:
    """The responses with the highest and the lowest reward, the first of each."""
    return {
        "group_id": group.group_id,
        "problem_id": group.problem_id,
        "question": group.question,
        "answer": group.answer,
        "correct": sum(status == "correct" for status in group.statuses),
        "of": len(group.statuses),
        "sides": [_side(group, int(pick(group.rewards))) for pick in (np.argmax, np.argmin)],
    }


def _side(group: GroupArrays, i: int) -> Side:
    return Side(
        shortened(group.texts[i]),
        "right" if group.statuses[i] == "correct" else "wrong",
        len(group.response_token_ids[i]),
        group.finish_reasons[i] == "length",
    )
