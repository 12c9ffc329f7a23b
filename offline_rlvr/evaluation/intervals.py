"""Bootstrap intervals over problems.

A problem is the unit that is drawn: its responses share one question, so resampling single
responses would make intervals too narrow. Resampling problems covers both which problems were
asked and which responses were sampled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_rlvr.errors import ConfigError

Method = Literal["bca", "percentile"]

LEVEL = 0.95
RESAMPLES = 4000
#: Index draws held in memory at once (int64: 16 MB).
DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over problems with its interval.

    Attributes:
        value: The mean; nan when there is no problem.
        low, high: Ends of the interval; nan when there are fewer than two problems.
        problems: How many problems went in.
    """

    value: float
    low: float
    high: float
    problems: int

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON, which knows no nan."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        finite = {name: None if np.isnan(end) else end for name, end in ends.items()}
        return {**finite, "problems": self.problems}


def bootstrap_interval(
    *values: ArrayLike,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    method: Method = "bca",
) -> Interval:
    """Mean of all given values, with a bootstrap interval; several arrays are strata.

    With several arrays (benchmarks) each is resampled within itself and the mean is over all
    problems, so a benchmark weighs as many problems as it has.

    Args:
        values: One or more [P]; nan values (a problem that could not be measured) are left out.
        level: Coverage, in (0, 1).
        resamples: Bootstrap replicates.
        seed: Same seed, same interval.
        method: `bca` corrects for bias and skew (accuracies near 0 or 1 are skewed), `percentile`
            does not.

    Raises:
        ConfigError: `level` or `resamples` out of range.

    Reference: Efron 1987, "Better Bootstrap Confidence Intervals".
    """
    if not 0 < level < 1 or resamples < 100:
        raise ConfigError(
            f"level {level} with {resamples} resamples; allowed are 0 < level < 1 and 100 or more"
        )
    strata = [array[~np.isnan(array)] for array in (np.asarray(v, np.float64) for v in values)]
    strata = [array for array in strata if len(array)]
    problems = sum(map(len, strata))
    if problems == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(sum(array.sum() for array in strata) / problems)
    if problems == 1:
        return Interval(mean, np.nan, np.nan, 1)
    rng = np.random.default_rng(seed)
    sums = np.add.reduce([resampled_sums(array, resamples, rng) for array in strata])
    means = sums / problems
    tail = (1 - level) / 2
    tails = (tail, 1 - tail)
    if method == "bca":
        tails = _bca_tails(tails, means, mean, strata)
    low, high = np.quantile(means, tails)
    return Interval(mean, float(low), float(high), problems)


def paired_difference(
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean of after - before over the problems measured both times, with its interval.

    Args:
        before: problem id -> value; nan where not measured.
        after: The same, later.
        level, resamples, seed: See `bootstrap_interval`.

    Raises:
        ConfigError: No problem is in both.
    """
    differences = paired_values(before, after)
    if not len(differences):
        raise ConfigError(
            "before and after share no problem, so they cannot be compared pair by pair",
            hint="evaluate the same problems both times",
        )
    return bootstrap_interval(differences, level=level, resamples=resamples, seed=seed)


def paired_values(before: Mapping[str, float], after: Mapping[str, float]) -> NDArray[np.float64]:
    """[P] after - before of the problems in both, in `before` order; nan where one is nan."""
    return np.array([after[key] - value for key, value in before.items() if key in after])


def resampled_sums(
    values: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """[resamples] sums of len(values) draws with replacement."""
    rows = max(1, DRAWS_AT_ONCE // len(values))
    return np.concatenate(
        [
            values[rng.integers(len(values), size=(min(rows, resamples - start), len(values)))].sum(
                1
            )
            for start in range(0, resamples, rows)
        ]
    )


def _bca_tails(
    tails: tuple[float, float],
    means: NDArray[np.float64],
    mean: float,
    strata: list[NDArray[np.float64]],
) -> tuple[float, float]:
    """The percentiles to read instead: shifted for the replicates' bias and the mean's skew."""
    normal = NormalDist()
    # Sums of floats tie only approximately; ties count half.
    scale = np.spacing(max(1.0, float(np.abs(means).max()))) * 64
    below = (means < mean - scale).mean() + 0.5 * (np.abs(means - mean) <= scale).mean()
    if not 0 < below < 1:
        return tails
    bias = normal.inv_cdf(float(below))
    deviations = np.concatenate([array - array.mean() for array in strata])
    spread = float((deviations**2).sum())
    if spread == 0:
        return tails
    skew = float((deviations**3).sum()) / (6 * spread**1.5)

    def shifted(tail: float) -> float:
        z = bias + normal.inv_cdf(tail)
        return normal.cdf(bias + z / (1 - skew * z))

    return shifted(tails[0]), shifted(tails[1])
