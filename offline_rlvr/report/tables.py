"""The tables of the page: funnel, accuracies, settings, metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offline_rlvr.dotted import leaves
from offline_rlvr.report.record import RunRecord
from offline_rlvr.report.verdict import Comparison, number, percent, points


@dataclass(frozen=True)
class FunnelRow:
    """One bar: a label, its groups, their share of the sampled ones (0..1), and whether it is a
    part of the stage above or below rather than a stage.
    """

    label: str
    groups: int
    share: float
    part: bool = False


def funnel(run: RunRecord) -> list[FunnelRow]:
    """Sampled, scored, mixed and trained groups; empty when run.json has no funnel."""
    rows = stages(run.part("funnel"))
    if not rows:
        return []
    sampled = rows[0].groups
    removed = run.part("selection").get("removed") or {}
    left_out = [_row(f"left out by {n}", c, sampled, part=True) for n, c in removed.items()]
    return [*rows, *left_out, _row("trained on", run.trained_groups, sampled)]


def stages(counts: Mapping[str, Any]) -> list[FunnelRow]:
    """Sampled, scored and mixed groups of a pool (see `pool.summary.funnel`); empty without any."""
    sampled = int(counts.get("sampled_groups") or 0)
    if not sampled:
        return []
    mixed = int(counts.get("mixed", 0))
    right, wrong = int(counts.get("all_right", 0)), int(counts.get("all_wrong", 0))
    unscored = int(counts.get("unscored_groups", 0))
    return [
        _row("sampled", sampled, sampled),
        _row("not fully scored", unscored, sampled, part=True),
        _row("scored", mixed + right + wrong, sampled),
        _row("all responses right", right, sampled, part=True),
        _row("all responses wrong", wrong, sampled, part=True),
        _row("mixed", mixed, sampled),
    ]


def _row(label: str, groups: int, sampled: int, *, part: bool = False) -> FunnelRow:
    return FunnelRow(label, groups, min(1.0, groups / sampled), part)


def funnel_notes(counts: Mapping[str, Any]) -> list[str]:
    """Truncated responses and dropped groups, in words."""
    notes = []
    truncated, total = counts.get("truncated_responses"), counts.get("sampled_responses")
    if truncated is not None and total:
        notes.append(
            f"{truncated:,} of {total:,} responses ({percent(truncated / total)}) were cut at the "
            "length limit."
        )
    drops = counts.get("drops")
    if isinstance(drops, Mapping) and any(drops.values()):
        reasons = ", ".join(f"{v:,} {k.replace('_', ' ')}" for k, v in drops.items() if v)
        notes.append(f"Problems drawn but not sampled: {reasons}.")
    return notes


def accuracies(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    """One table per set: metric, before, after, difference."""
    return [
        {
            "name": c.before.name,
            "problems": len(c.before.problem_ids),
            "after_update": c.after.update,
            "rows": [
                {
                    "metric": change.metric,
                    "before": percent(change.before),
                    "after": percent(change.after),
                    "points": points(change.difference.value, sign=True),
                    "interval": change.ends,
                    "kind": change.kind,
                    "problems": change.difference.problems,
                }
                for change in c.changes
            ],
            "beside": [
                ("mean length, tokens", *(f"{e.lengths.mean():,.0f}" for e in (c.before, c.after))),
                ("cut at the limit", *(percent(e.truncated_share) for e in (c.before, c.after))),
                ("not scored", *(f"{e.unscored:,}" for e in (c.before, c.after))),
            ],
        }
        for c in comparisons
    ]


def settings(run: RunRecord) -> list[tuple[str, str]]:
    """What was run on what: `run.json` without what the page shows elsewhere."""
    left_out = {"funnel", "selection", "versions", "settings"}  # the settings are config.yaml's
    return flattened({key: value for key, value in run.identity.items() if key not in left_out})


def flattened(value: Any) -> list[tuple[str, str]]:
    """Nested JSON as (dotted name, text) rows, empty parts left out."""
    return [(name, _text(leaf)) for name, leaf in leaves(value) if leaf != {}]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def metric_rows(run: RunRecord, definitions: Mapping[str, str]) -> list[dict[str, str]]:
    """Each metric of the run: first, last, least and greatest value, and its definition."""
    rows = []
    for key in run.keys:
        series = run.series(key)
        if not len(series):
            continue
        values = (series.values[0], series.values[-1], series.values.min(), series.values.max())
        first, last, least, greatest = (number(float(value)) for value in values)
        rows.append(
            {
                "key": key,
                "first": first,
                "last": last,
                "least": least,
                "greatest": greatest,
                "definition": definitions.get(key, ""),
            }
        )
    return rows
