"""The charts of what a comparison's methods answer: accuracy, pass@k, difficulty, length."""

from collections.abc import Iterable

import numpy as np

from offline_rlvr.evaluation import mean_at_k, pass_at_k_of
from offline_rlvr.numerics.pass_at_k import powers_of_two
from offline_rlvr.report import style
from offline_rlvr.report.compare.chart import Chart, Level, Line
from offline_rlvr.report.compare.methods import Method
from offline_rlvr.report.compare.standings import Field, known_mean, table

#: Upper ends of the classes of difficulty, by the base model's own success rate.
DIFFICULTY = (0.0, 0.25, 0.5, 0.75, 1.0)
BAND = "Line: mean over seeds; band: lowest to highest seed."


def accuracy_charts(field: Field) -> list[Chart]:
    """Where each method ended, the way there, pass@k with the base's own, and by difficulty."""
    return [
        _gains(field),
        *(
            chart
            for name in field.sets
            for chart in (_accuracy(field, name), _passes(field, name), _difficulty(field, name))
        ),
    ]


def length_charts(field: Field) -> list[Chart]:
    """Length of the held-out answers over training, a chart for each set."""
    charts = []
    for name in field.sets:
        lines = []
        for look, method in ranked(field):
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


def ranked(field: Field) -> list[tuple[int, Method]]:
    """Methods, best first, each with the number of its look: the same in every chart."""
    return list(enumerate(standing.method for standing in field.standings))


def _gains(field: Field) -> Chart:
    standings = field.standings
    names = [standing.method.name for standing in standings]
    low, value, high = (
        100 * np.array([(s.gain.low, s.gain.value, s.gain.high) for s in standings]).T
    )
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


def _accuracy(field: Field, name: str) -> Chart:
    lines = []
    for look, method in ranked(field):
        runs = [run.sets()[name] for run in method.runs.values()]
        updates = sorted(set.intersection(*({e.update for e in found} for found in runs)))
        means = np.array(
            [
                [known_mean(mean_at_k(e.rewards)) for e in found if e.update in updates]
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
            [[known_mean(pass_at_k_of(e.rewards, k)) for k in ks] for e in evaluations]
        )
        return Line(label, look, ks, means.mean(0), means.min(0), means.max(0))

    lines = [
        line(method.name, look, method.evaluations(name).values()) for look, method in ranked(field)
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
    answered = table(bases, lambda e: mean_at_k(e.rewards))
    rate = np.array([known_mean(problem) for problem in answered.T])
    which = np.searchsorted(DIFFICULTY, rate)  # right ends included; nan falls behind the last
    kept = [i for i in range(len(DIFFICULTY)) if (which == i).any()]
    labels = [f"{_class_name(i)}\n({(which == i).sum()})" for i in kept]

    def line(label: str, look: int | None, rates: np.ndarray) -> Line:
        means = np.array([[known_mean(row[which == i]) for i in kept] for row in rates])
        return Line(label, look, labels, means.mean(0), means.min(0), means.max(0))

    def rates(method: Method) -> np.ndarray:
        return table(method.evaluations(name), lambda e: mean_at_k(e.rewards))

    lines = [line(method.name, look, rates(method)) for look, method in ranked(field)]
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
