"""A comparison on disk: one HTML page, the same as Markdown, and its figures and numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.report import style
from offline_rlvr.report.compare.accuracy_charts import accuracy_charts
from offline_rlvr.report.compare.chart import Chart
from offline_rlvr.report.compare.methods import read_methods
from offline_rlvr.report.compare.metric_charts import drift_charts, training_charts
from offline_rlvr.report.compare.sentences import drifted, how_sure, single_answer, verdict
from offline_rlvr.report.compare.standings import Field
from offline_rlvr.report.compare.tables import (
    Table,
    accuracy_csv,
    as_json,
    by_seed,
    markdown_text,
    pairs_csv,
    set_table,
    settings_table,
    standings_table,
)
from offline_rlvr.report.inert import inert, one_line
from offline_rlvr.report.page import fill_template
from offline_rlvr.report.style import Figured

#: Charts of metrics that a run may not have, with what measures them.
MAY_BE_MISSING = {
    "drift_by_position": "drift by position and by behavior probability, entropy (measured "
    "every train.log_entropy_every updates, the former since this version)",
    "gibbs_ess_success": "within-success ESS (for objectives with a temperature beta)",
}


@dataclass(frozen=True)
class Compared:
    """What was written: the page, plain lines for a terminal, and the numbers as JSON values."""

    page: Path
    lines: Sequence[str]
    facts: dict[str, Any]


def compare_runs(paths: Sequence[Path], folder: Path) -> Compared:
    """Compare runs and write the result into a folder.

    Writes `compare.html`, `compare.md`, `accuracy.csv`, `pairs.csv`, and in `figures/` a PNG and a
    CSV file for each figure; files of an earlier comparison there are replaced.

    Args:
        paths: Run folders, or folders that hold runs.
        folder: Made where it is not there.

    Raises:
        ConfigError, DataError, BusyError, IncompatibleError: See `methods.read_methods`.
        ResourceError: The folder cannot be written.
    """
    field = Field(read_methods(paths))
    charts = {
        "Accuracy": accuracy_charts(field),
        "Drift from the behavior policy": drift_charts(field),
        "Training": training_charts(field),
    }
    make_folder(folder / "figures")
    drawn: dict[str, list[Figured]] = {}
    for section, those in charts.items():
        drawn[section] = [_write_chart(chart, folder / "figures") for chart in those]
    tables = [set_table(field, name) for name in field.sets]
    files = {
        "compare.html": fill_template("compare.html.jinja", _content(field, drawn, tables)),
        "compare.md": _markdown(field, charts, tables),
        "accuracy.csv": accuracy_csv(field),
        "pairs.csv": pairs_csv(field),
    }
    for name, text in files.items():
        write_file(folder / name, text.encode("utf-8"), replace=True)
    page = folder / "compare.html"
    lines = [verdict(field)[1], drifted(field), how_sure(field), *_aligned(standings_table(field))]
    return Compared(page, [inert(line) for line in [*lines, f"Page: {page}"]], as_json(field))


def _write_chart(chart: Chart, folder: Path) -> Figured:
    names = len({x for line in chart.lines for x in line.x}) if chart.kind == "rows" else 0
    height = max(style.PANEL[1], 0.26 * names + 0.7)
    svg, png = style.chart(chart.draw, height, "svg", "png")
    write_file(folder / f"{chart.key}.png", png, replace=True)
    write_file(folder / f"{chart.key}.csv", chart.as_csv().encode("utf-8"), replace=True)
    alt = f"{chart.title}; the numbers are in figures/{chart.key}.csv"
    return Figured(style.data_uri(svg), chart.title, alt, chart.reading)


def _content(
    field: Field, drawn: dict[str, list[Figured]], tables: Sequence[Table]
) -> dict[str, Any]:
    pairs = field.pairs()
    first = field.standings[0].method.name
    run = next(iter(field.methods[0].runs.values()))
    sides = [(pair.sentence, by_seed(pair), first in (pair.first, pair.second)) for pair in pairs]
    return {
        "title": f"{len(field.methods)} methods on one pool",
        "subtitle": _subtitle(field),
        "won": verdict(field)[0],
        "sentence": verdict(field)[1],
        "drift": drifted(field),
        "certainty": how_sure(field),
        "standings": standings_table(field),
        "sets": [
            (one, single_answer(field, name)) for one, name in zip(tables, field.sets, strict=True)
        ],
        "figures": drawn,
        "of_first": [side[:2] for side in sides if side[2]],
        "of_others": [side[:2] for side in sides if not side[2]],
        "first": first,
        "methods": settings_table(field),
        "missing": _missing(field, drawn),
        "shared": sorted(
            (key, str(value))
            for key, value in run.part("settings").items()
            if key not in {k for method in field.methods for k in method.settings}
        ),
    }


def _subtitle(field: Field) -> str:
    run = next(iter(field.methods[0].runs.values()))
    pool, plan, model = (run.part(key) for key in ("pool", "plan", "model"))
    seeds = len(field.seeds)
    return (
        f"{model.get('name_or_path')} · pool {pool.get('path')}, commit {pool.get('commit')} · "
        f"{run.planned:,} updates of {plan.get('groups_per_update')} groups · "
        f"{seeds} seed{'' if seeds == 1 else 's'}"
    )


def _missing(field: Field, drawn: dict[str, list[Figured]]) -> list[str]:
    """What the page would show if the runs had measured it."""
    alts = " ".join(figure.alt for figures in drawn.values() for figure in figures)
    return [
        f"Not measured: {what}."
        for key, what in MAY_BE_MISSING.items()
        if f"figures/{key}.csv" not in alts
    ]


def _markdown(field: Field, charts: dict[str, list[Chart]], tables: Sequence[Table]) -> str:
    parts = [
        f"# {len(field.methods)} methods on one pool",
        markdown_text(_subtitle(field)),
        f"**{markdown_text(verdict(field)[1])}**",
        *map(markdown_text, (drifted(field), how_sure(field))),
        standings_table(field).as_markdown(),
        *(one.as_markdown() for one in tables),
        "### Pairs",
        "\n".join(f"- {markdown_text(pair.sentence)} ({by_seed(pair)})" for pair in field.pairs()),
        *(markdown_text(single_answer(field, name)) for name in field.sets),
    ]
    for section, those in charts.items():
        parts.append(f"## {section}")
        parts += [f"![{c.title}](figures/{c.key}.png)\n\n{c.title}. {c.reading}" for c in those]
    parts.append(settings_table(field).as_markdown())
    return inert("\n\n".join(parts) + "\n")


def _aligned(table: Table) -> list[str]:
    rows = [[one_line(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
