"""The charts of what training did: drift, ESS, entropy, gradients, as far as runs measured it."""

from collections.abc import Sequence

import numpy as np

from offline_rlvr.diagnostics.bins import PARTS, POSITION_KEYS, PROBABILITIES, PROBABILITY_KEYS
from offline_rlvr.report import style
from offline_rlvr.report.compare.accuracy_charts import BAND, length_charts, ranked
from offline_rlvr.report.compare.chart import Chart, Level, Line
from offline_rlvr.report.compare.standings import Field
from offline_rlvr.report.definitions import definitions_of


def drift_charts(field: Field) -> list[Chart]:
    """Drift, K3, ESS, and drift by reward, position and behavior probability, as measured."""
    drift = _over_updates(
        field,
        "drift/abs_log_ratio",
        "Drift, nats per token",
        "How far the policy has moved from the one that sampled the pool.",
        log=True,
        floor="drift/noise_floor",
    )
    k3 = _over_updates(
        field,
        "drift/k3_behavior_policy",
        "K3, behavior to policy",
        "The same movement, large steps weighing more.",
        log=True,
    )
    ess = _over_updates(
        field,
        "weights/ess",
        "Effective sample size (ESS)",
        "Share of the responses that would still count after reweighting to the policy.",
        log=True,
        levels=_ess_levels(field),
    )
    found = [drift, k3, ess, _ess_by_drift(field), _by_reward(field), *_by_token(field)]
    return [chart for chart in found if chart is not None]


def training_charts(field: Field) -> list[Chart]:
    """What the methods did to responses and weights."""
    metrics = [
        (
            "gibbs/ess_success",
            "Within-success ESS",
            "1: the right responses of a group count alike; low: one of them carries the group.",
            False,
        ),
        (
            "objective/negative_correct_fraction",
            "Penalized right responses",
            "Share of the right responses that the objective pushes down.",
            False,
        ),
        ("policy/entropy", "Entropy, nats per token", "Near 0: certain of every token.", False),
        ("train/grad_norm", "Gradient norm", "Comparable within one objective only.", True),
    ]
    found = [
        _over_updates(field, key, title, reading, log=log, share=key.endswith("fraction"))
        for key, title, reading, log in metrics
    ]
    return [*(chart for chart in found if chart is not None), *length_charts(field)]


def _over_updates(
    field: Field,
    key: str,
    title: str,
    reading: str,
    *,
    log: bool,
    floor: str | None = None,
    levels: Sequence[Level] = (),
    share: bool = False,
) -> Chart | None:
    bands = [(look, method, method.band(key)) for look, method in ranked(field)]
    lines = [
        Line(method.name, look, band.updates.tolist(), band.mean, band.low, band.high)
        for look, method, band in bands
        if len(band.updates) > 1
    ]
    if not lines:
        return None
    noise = field.methods[0].last(floor) if floor else None
    if noise:
        levels = [Level(noise, "noise floor"), *levels]
    definition = definitions_of([key]).get(key, "")
    words = f"{reading} {BAND}" + (f" Definition: {definition}." if definition else "")
    name = key.replace("/", "_").replace(".", "_")
    return Chart(name, title, words, "update", key, lines, log_y=log, levels=levels, share=share)


def _ess_levels(field: Field) -> list[Level]:
    responses = {
        run.responses_in_ess for method in field.methods for run in method.runs.values()
    } - {None}
    levels = [Level(1.0, "1: no drift")]
    if len(responses) == 1 and (count := responses.pop()):
        levels.append(Level(1 / count, f"1/{count:,}: one response carries all", style.RUST))
    return levels


def _ess_by_drift(field: Field) -> Chart | None:
    lines = []
    for look, method in ranked(field):
        drift, ess = method.band("drift/abs_log_ratio"), method.band("weights/ess")
        shared = np.intersect1d(drift.updates, ess.updates)
        shared = shared[shared > 1]  # the untouched policy has no drift to show
        x, y = (band.mean[np.isin(band.updates, shared)] for band in (drift, ess))
        if len(x):
            lines.append(Line(method.name, look, x.tolist(), y))
    if not lines:
        return None
    return Chart(
        "ess_against_drift",
        "ESS against drift",
        "A point is an update. Methods on one curve lose responses by moving; a method below it "
        "concentrates its movement on fewer of them.",
        "drift, nats per token",
        "ESS",
        lines,
        kind="points",
        log_x=10,
        log_y=True,
    )


def _by_reward(field: Field) -> Chart | None:
    """Right and wrong responses apart, at the end."""
    sides = ("right", "wrong")
    rows = [
        (method.name, [method.last(f"drift/abs_log_ratio/{side}", 8) for side in sides])
        for _, method in ranked(field)
    ]
    if any(value is None for _, values in rows for value in values):
        return None
    names = [name for name, _ in rows]
    values = np.array([values for _, values in rows], float)
    return Chart(
        "drift_by_reward",
        "Drift by reward, last 8 updates",
        "Whether right or wrong responses moved more, nats per token.",
        "method",
        "drift, nats per token",
        [Line(f"{side} responses", i, names, values[:, i]) for i, side in enumerate(sides)],
        kind="rows",
        log_y=True,
    )


def _by_token(field: Field) -> list[Chart]:
    """Drift by position and by behavior probability, at the last logging update."""
    positions = [f"{100 * part // PARTS}" for part in range(1, PARTS + 1)]
    chances = [f"{high:g}" for high in PROBABILITIES[1:]]
    wanted = (
        (
            "drift_by_position",
            "Drift by position",
            POSITION_KEYS,
            positions,
            "Tenths of a response, by their ends in percent; the last logging update.",
            "percent of the response",
        ),
        (
            "drift_by_probability",
            "Drift by behavior probability",
            PROBABILITY_KEYS,
            chances,
            "Tokens by how likely the sampler found them, up to the given probability; the last "
            "logging update.",
            "behavior probability, up to",
        ),
    )
    charts = []
    for key, title, keys, labels, reading, x_name in wanted:
        lines = []
        for look, method in ranked(field):
            values = [method.last(name) for name in keys]
            updates = [u for name in keys for u in method.band(name).updates]
            if max(updates, default=1) > 1:  # at update 1 there is only noise
                lines.append(Line(method.name, look, labels, np.array(values, float)))
        if lines:
            charts.append(
                Chart(key, title, reading, x_name, "drift, nats per token", lines, log_y=True)
            )
    return charts
