"""Who is better than whom, by how much, how sure that is, and how far each has moved."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from offline_rlvr.evaluation import (
    Evaluation,
    Interval,
    mean_at_k,
    pass_at_k_of,
    seeded_interval,
)
from offline_rlvr.report.compare.methods import Method
from offline_rlvr.report.record import ESS_WINDOW
from offline_rlvr.report.verdict import direction, ends, number, percent, points

#: So many methods are each named in a sentence.
FEW = 4
#: From so many pairs on, one or more is expected to look different by chance.
MANY = 20

Floats = NDArray[np.float64]
Measure = Callable[[Evaluation], Floats]


@dataclass(frozen=True)
class Pair:
    """Two methods on the same problems, seed by seed.

    Attributes:
        first, second: Names, the one with the higher mean first.
        difference: first - second, as a share; over problems and shared seeds.
        by_seed: Seed -> its difference alone.
    """

    first: str
    second: str
    difference: Interval
    by_seed: dict[int, float]

    @property
    def sentence(self) -> str:
        """`ggpo beats grpo by 3.1 points [1.2, 5.0].`"""
        kind, value = direction(self.difference), self.difference.value
        if kind in ("rise", "fall"):
            sides = (self.first, self.second) if kind == "rise" else (self.second, self.first)
            low, high = sorted((abs(self.difference.low), abs(self.difference.high)))
            span = f"[{points(low)}, {points(high)}]"
            return f"{sides[0]} beats {sides[1]} by {points(abs(value))} points {span}."
        found = f"{points(value, sign=True)} points"
        if kind == "open":
            return f"{self.first} and {self.second}: {found}; too few problems to say more."
        return (
            f"{self.first} and {self.second}: no difference shown, {found} {ends(self.difference)}."
        )


@dataclass(frozen=True)
class Standing:
    """A method at the end of its training.

    Attributes:
        method: The method.
        mean: mean@n over the problems of all sets, each weighing the same.
        passed: pass@n likewise.
        gain: mean - that of the base, paired by problem and seed.
        drift, k3, ess: Over the last 8 updates; None where never measured.
    """

    method: Method
    mean: Interval
    passed: Interval
    gain: Interval
    drift: float | None
    k3: float | None
    ess: float | None


@dataclass(frozen=True, eq=False)
class Field:
    """All compared methods."""

    methods: Sequence[Method]

    @cached_property
    def sets(self) -> dict[str, int]:
        """Evaluation set -> answers per problem."""
        first = next(iter(self.methods[0].runs.values()))
        return {name: results[-1].n for name, results in first.sets().items()}

    @cached_property
    def mean_name(self) -> str:
        """`mean@32`; `mean reward` where sets differ in their n."""
        sizes = set(self.sets.values())
        return f"mean@{sizes.pop()}" if len(sizes) == 1 else "mean reward"

    @property
    def n(self) -> int:
        """Answers per problem that every set has."""
        return min(self.sets.values())

    @cached_property
    def seeds(self) -> list[int]:
        """Every seed of any method."""
        return sorted({seed for method in self.methods for seed in method.runs})

    @cached_property
    def possible(self) -> tuple[float, float]:
        """What a mean reward can be: 0 to 1, and wider where rewards were."""
        runs = [run for method in self.methods for run in method.runs.values()]
        found = [e.rewards for run in runs for e in run.evaluations]
        rewards = np.concatenate([[0.0, 1.0], *(table[~np.isnan(table)] for table in found)])
        return float(rewards.min()), float(rewards.max())

    @property
    def possible_difference(self) -> tuple[float, float]:
        """What two mean rewards can differ by."""
        low, high = self.possible
        return low - high, high - low

    def base(self, name: str) -> list[Evaluation]:
        """The base model's answers, once for each seed."""
        found: dict[int, Evaluation] = {}
        for method in self.methods:
            found = method.evaluations(name, 0) | found
        return [found[seed] for seed in self.seeds]

    @cached_property
    def standings(self) -> list[Standing]:
        """Best mean first."""
        found = [self._standing(method) for method in self.methods]
        return sorted(found, key=lambda s: -s.mean.value)

    def pairs(self, measure: Measure = lambda e: mean_at_k(e.rewards)) -> list[Pair]:
        """Every pair of methods, in the order of the standings."""
        ranked = [standing.method for standing in self.standings]
        return [self._pair(a, b, measure) for a, b in combinations(ranked, 2)]

    def passed(self, evaluation: Evaluation) -> Floats:
        """[P] pass@n."""
        return pass_at_k_of(evaluation.rewards, self.n)

    def _standing(self, method: Method) -> Standing:
        def over(measure: Measure, update: int | None = None) -> list[Floats]:
            return [table(method.evaluations(name, update), measure) for name in self.sets]

        def mean(e: Evaluation) -> Floats:
            return mean_at_k(e.rewards)

        gains = [after - before for after, before in zip(over(mean), over(mean, 0), strict=True)]
        return Standing(
            method,
            mean=seeded_interval(*over(mean), within=self.possible),
            passed=seeded_interval(*over(self.passed), within=(0, 1)),
            gain=seeded_interval(*gains, within=self.possible_difference),
            drift=method.last("drift/abs_log_ratio", ESS_WINDOW),
            k3=method.last("drift/k3_behavior_policy", ESS_WINDOW),
            ess=method.last("weights/ess"),
        )

    def _pair(self, first: Method, second: Method, measure: Measure) -> Pair:
        shared = sorted(first.runs.keys() & second.runs.keys())
        differences = []
        for name in self.sets:
            sides = (method.evaluations(name) for method in (first, second))
            mine, other = (table({s: found[s] for s in shared}, measure) for found in sides)
            differences.append(mine - other)
        each = map(known_mean, np.concatenate(differences, axis=1))
        by_seed = dict(zip(shared, each, strict=True))
        difference = seeded_interval(*differences, within=self.possible_difference)
        return Pair(first.name, second.name, difference, by_seed)


def known_mean(values: Floats) -> float:
    """Mean of what could be measured; nan when nothing could."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def table(evaluations: dict[int, Evaluation], measure: Measure) -> Floats:
    """[S, P] of a measure, a row for each seed."""
    return np.array([measure(evaluation) for evaluation in evaluations.values()])


def verdict(field: Field) -> tuple[bool, str]:
    """Whether one method beats all others, and the sentence that says by how much."""
    best, *others = field.standings
    name = best.method.name
    reached = (
        f"{field.mean_name} {percent(best.mean.value)}, "
        f"{points(best.gain.value, sign=True)} points {ends(best.gain)} from the base model"
    )
    if not others:
        return False, f"{name} is the only method: {reached}."
    own = [pair for pair in field.pairs() if name in (pair.first, pair.second)]
    equal = [pair for pair in own if direction(pair.difference) != "rise"]
    if not equal:
        nearest = own[0]
        return True, (
            f"{name} won ({reached}): it beats every other method, the next best, "
            f"{nearest.second}, by {points(nearest.difference.value)} points "
            f"{ends(nearest.difference)}."
        )
    names = ", ".join(p.second if p.first == name else p.first for p in equal)
    beaten = len(own) - len(equal)
    rest = f"; it beats the {beaten} other{'s' if beaten > 1 else ''}" if beaten else ""
    return False, (
        f"No single winner. {name} is highest ({reached}), but no difference is shown to "
        f"{names}{rest}."
    )


def how_sure(field: Field) -> str:
    """What the intervals cover."""
    problems = field.standings[0].mean.problems
    seeds = len(field.seeds)
    asked = " + ".join(f"{name}" for name in field.sets)
    over = f"{problems:,} problems of {asked}, {field.n} answers each"
    if seeds == 1:
        return (
            f"Intervals are at 95 % over {over}. There is one seed: they say nothing about what "
            "training once more would give."
        )
    pairs = math.comb(len(field.methods), 2)
    chance = ""
    if pairs >= MANY:
        lucky = f"about {0.05 * pairs:.0f}"
        chance = f" Each holds by itself: of {pairs} pairs, {lucky} may look different by chance."
    few = " Two seeds say little about a third, which makes them wide." if seeds == 2 else ""
    return f"Intervals are at 95 % over {over}, and over {seeds} seeds of training.{few}{chance}"


def drifted(field: Field) -> str:
    """How far the methods had moved by the end: each of a few, or the first, least and most."""
    known = [s for s in field.standings if s.drift is not None]
    if not known:
        return "Drift was not measured."
    ordered = sorted(known, key=lambda s: s.drift or 0.0)
    named = ordered if len(ordered) <= FEW else [known[0], ordered[0], ordered[-1]]
    words = [""] * len(named) if len(ordered) <= FEW else ["", "least: ", "most: "]
    each = "; ".join(
        f"{word}{s.method.name} {number(s.drift)} (ESS {number(s.ess)})"
        for word, s in zip(words, named, strict=True)
    )
    floor = field.methods[0].last("drift/noise_floor")
    beside = f" (noise floor {number(floor)})" if floor is not None else ""
    rest = "" if len(named) == len(known) else "; the others in the table"
    return (
        f"Drift from the behavior policy at the end, nats per token{beside}: {each}{rest}."
        + _ended_early(field)
    )


def _ended_early(field: Field) -> str:
    """Which runs had fewer updates than the others."""
    early = [
        f"{method.name} after update {update} (seed {seed})"
        for method in field.methods
        for seed, update in method.ended.items()
    ]
    return f" Ended early by train.stop_when: {', '.join(early)}." if early else ""


def best_of(field: Field, name: str) -> dict[str, int | None]:
    """Method -> the least k with which the base's best of k matches one trained answer; None: more
    answers than there are.
    """
    base = dict(enumerate(field.base(name)))
    ks = range(1, field.sets[name] + 1)
    reach = [known_mean(table(base, lambda e, k=k: pass_at_k_of(e.rewards, k))) for k in ks]
    found: dict[str, int | None] = {}
    for standing in field.standings:
        evaluations = standing.method.evaluations(name)
        mean = known_mean(table(evaluations, lambda e: mean_at_k(e.rewards)))
        found[standing.method.name] = next((k for k, p in enumerate(reach, 1) if p >= mean), None)
    return found


def single_answer(field: Field, name: str) -> str:
    """Whether one trained answer beats the base model's best of k, for the furthest method."""
    best, most = max(best_of(field, name).items(), key=lambda item: item[1] or math.inf)
    n = field.sets[name]
    if most is None:
        return f"On {name} a single answer of {best} beats the base model's best of {n}."
    if most == 1:
        return f"On {name} no method's single answer beats a single one of the base model."
    return (
        f"On {name} a single answer of {best} beats the base model's best of {most - 1}, "
        f"but not its best of {most}."
    )
