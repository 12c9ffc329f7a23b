"""Which charts a comparison shows, and the numbers in them."""

from collections.abc import Iterable, Sequence

import numpy as np

from offline_rlvr.diagnostics.bins import PARTS, POSITION_KEYS, PROBABILITIES, PROBABILITY_KEYS
from offline_rlvr.evaluation import mean_at_k, pass_at_k_of
from offline_rlvr.numerics.pass_at_k import powers_of_two
from offline_rlvr.report import style
from offline_rlvr.report.compare.chart import Chart, Level, Line
from offline_rlvr.report.compare.methods import Method
from offline_rlvr.report.compare.standings import Field, table
from offline_rlvr.report.definitions import definitions_of

#: Upper ends of the classes of difficulty, by the base model's own success rate.
DIFFICULTY = (0.0, 0.25, 0.5, 0.75, 1.0)
BAND = "Line: mean over seeds; band: lowest to highest seed."


def accuracy_charts(field: Field) -> list[Chart]:
    """Where each method ended, the way there, pass@k with the base's own, and by difficulty."""
    return [
        _gains(field),
        *(chart for name in field.sets for chart in _of_set(field, name)),
    ]


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
    return [*(chart for chart in found if chart is not None), *_lengths(field)]


def _ranked(field: Field) -> list[tuple[int, Method]]:
    return list(enumerate(standing.method for standing in field.standings))


def _gains(field: Field) -> Chart:
    ranked = field.standings
    names = [standing.method.name for standing in ranked]
    low, value, high = 100 * np.array([(s.gain.low, s.gain.value, s.gain.high) for s in ranked]).T
    return Chart(
        "gain",
        f"Gain over the base model in {field.mean_name}, points",
        "Dot: mean over seeds and problems; bar: 95 % interval. Methods answer the same problems, "
        "so bars that overlap may still differ: the pairs above say which do.",
        "method",
        "points",
        [Line("after training", 0, names, value, low, high)],
        kind="rows",
        levels=[Level(0.0, "base model", style.GRAY)],
    )


def _of_set(field: Field, name: str) -> list[Chart]:
    return [_accuracy(field, name), _passes(field, name), _difficulty(field, name)]


def _accuracy(field: Field, name: str) -> Chart:
    lines = []
    for look, method in _ranked(field):
        runs = [run.sets()[name] for run in method.runs.values()]
        updates = sorted(set.intersection(*({e.update for e in found} for found in runs)))
        means = np.array(
            [
                [np.nanmean(mean_at_k(e.rewards)) for e in found if e.update in updates]
                for found in runs
            ]
        )
        lines.append(Line(method.name, look, updates, means.mean(0), means.min(0), means.max(0)))
    return Chart(
        f"accuracy_{name}",
        f"Accuracy on {name} (mean@{field.sets[name]}) against updates",
        BAND,
        "update",
        f"mean@{field.sets[name]}",
        lines,
        share=True,
    )


def _passes(field: Field, name: str) -> Chart:
    ks = powers_of_two(field.sets[name])

    def line(label: str, look: int | None, evaluations: Iterable) -> Line:
        means = np.array(
            [[np.nanmean(pass_at_k_of(e.rewards, k)) for k in ks] for e in evaluations]
        )
        return Line(label, look, ks, means.mean(0), means.min(0), means.max(0))

    lines = [
        line(method.name, look, method.evaluations(name).values())
        for look, method in _ranked(field)
    ]
    return Chart(
        f"pass_at_k_{name}",
        f"pass@k on {name}, with the base model's own",
        "Chance that one of k answers is right. Where a line meets the gray one, training has only "
        f"sharpened what k base answers already hold. {BAND}",
        "k",
        "pass@k",
        [line("base model", None, field.base(name)), *lines],
        log_x=2,
        share=True,
    )


def _difficulty(field: Field, name: str) -> Chart:
    bases = dict(enumerate(field.base(name)))
    rate = np.nanmean(table(bases, lambda e: mean_at_k(e.rewards)), axis=0)
    which = np.searchsorted(DIFFICULTY, rate)  # right ends included; nan falls behind the last
    kept = [i for i in range(len(DIFFICULTY)) if (which == i).any()]
    labels = [f"{_class_name(i)}\n({(which == i).sum()})" for i in kept]

    def line(label: str, look: int | None, rates: np.ndarray) -> Line:
        means = np.array([[np.nanmean(row[which == i]) for i in kept] for row in rates])
        return Line(label, look, labels, means.mean(0), means.min(0), means.max(0))

    def rates(method: Method) -> np.ndarray:
        return table(method.evaluations(name), lambda e: mean_at_k(e.rewards))

    lines = [line(method.name, look, rates(method)) for look, method in _ranked(field)]
    own = line("base model", None, rate[None])
    return Chart(
        f"difficulty_{name}",
        f"Accuracy on {name} by difficulty",
        "Problems by how often the base model solves them; their number in brackets. The classes "
        "are made from the base model's own answers, so part of a rise on the left is chance; it "
        f"is the same for all methods. {BAND}",
        "solved by the base model",
        f"mean@{field.sets[name]}",
        [own, *lines],
        share=True,
    )


def _class_name(i: int) -> str:
    high = f"{100 * DIFFICULTY[i]:g}"
    return "never" if i == 0 else f"to {high} %"


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
    bands = [(look, method, method.band(key)) for look, method in _ranked(field)]
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
    for look, method in _ranked(field):
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
        for _, method in _ranked(field)
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
        for look, method in _ranked(field):
            values = [method.last(name) for name in keys]
            updates = [u for name in keys for u in method.band(name).updates]
            if max(updates, default=1) > 1:  # at update 1 there is only noise
                lines.append(Line(method.name, look, labels, np.array(values, float)))
        if lines:
            charts.append(
                Chart(key, title, reading, x_name, "drift, nats per token", lines, log_y=True)
            )
    return charts


def _lengths(field: Field) -> list[Chart]:
    charts = []
    for name in field.sets:
        lines = []
        for look, method in _ranked(field):
            runs = [run.sets()[name] for run in method.runs.values()]
            updates = sorted(set.intersection(*({e.update for e in found} for found in runs)))
            means = np.array(
                [[e.lengths.mean() for e in found if e.update in updates] for found in runs]
            )
            lines.append(
                Line(method.name, look, updates, means.mean(0), means.min(0), means.max(0))
            )
        charts.append(
            Chart(
                f"length_{name}",
                f"Length of the answers to {name}, tokens",
                BAND,
                "update",
                "tokens",
                lines,
            )
        )
    return charts
