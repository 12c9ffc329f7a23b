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
from offline_rlvr.report.verdict import direction, ends, points

Floats = NDArray[np.float64]
Measure = Callable[[Evaluation], Floats]


@dataclass(frozen=True)
class Pair:
    """Two methods on the same problems, seed by seed.

    Attributes:
        first, second: Names, the one with the higher mean first.
        difference: first - second, as a share; over problems and seeds.
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
        """Those of every method."""
        return sorted(self.methods[0].runs)

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
        found = self.methods[0].evaluations(name, 0)
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
        differences = []
        for name in self.sets:
            mine, other = (table(m.evaluations(name), measure) for m in (first, second))
            differences.append(mine - other)
        each = map(known_mean, np.concatenate(differences, axis=1))
        by_seed = dict(zip(self.seeds, each, strict=True))
        difference = seeded_interval(*differences, within=self.possible_difference)
        return Pair(first.name, second.name, difference, by_seed)


def known_mean(values: Floats) -> float:
    """Mean of what could be measured; nan when nothing could."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def table(evaluations: dict[int, Evaluation], measure: Measure) -> Floats:
    """[S, P] of a measure, a row for each seed."""
    return np.array([measure(evaluation) for evaluation in evaluations.values()])
