"""Intervals for what was trained several times: over problems and over seeds.

A table [S, P] holds one value for each of S seeds and P problems. Both were drawn: other problems
could have been asked, and another seed would have ordered the groups in another way. The interval
of the mean covers both.

- Problems are many: their means over seeds are resampled, as for one run.
- Seeds are few, and resampling three of them says little. Their variance is what the means of
  the seeds scatter by beyond what the responses sampled for P problems make them scatter anyway
  (two-way analysis of variance), and the mean's error from it follows Student's t with S - 1
  degrees of freedom.

With one seed the interval is that over problems, and says nothing about training again.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_rlvr.evaluation.intervals import (
    LEVEL,
    RESAMPLES,
    Interval,
    bootstrap_interval,
    resampled_sums,
)


def seeded_interval(
    *tables: ArrayLike,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Interval:
    """Mean over seeds and problems with its interval; several tables are strata of problems.

    Args:
        tables: One or more [S, P_i] with the same S >= 1; a problem with a nan is left out.
        level: Coverage, in (0, 1).
        resamples: Replicates.
        seed: Same seed, same interval.
        within: What a mean can be: with two seeds Student's t may reach beyond it.

    Returns:
        The interval; `problems` counts those measured under every seed.

    Reference: Searle, Casella and McCulloch 1992, "Variance Components", for the two-way layout.
    """
    whole = [table[:, ~np.isnan(table).any(0)] for table in (np.asarray(t, float) for t in tables)]
    over_problems = [table.mean(0) for table in whole]
    seeds = whole[0].shape[0]
    if seeds == 1 or sum(map(len, over_problems)) < 2:
        return bootstrap_interval(*over_problems, level=level, resamples=resamples, seed=seed)
    rng = np.random.default_rng(seed)
    values = np.concatenate(whole, axis=1)
    strata = [means for means in over_problems if len(means)]
    sums = np.add.reduce([resampled_sums(means, resamples, rng) for means in strata])
    error = (_seed_variance(values) / seeds) ** 0.5
    means = sums / values.shape[1] + error * rng.standard_t(seeds - 1, resamples)
    tail = (1 - level) / 2
    low, high = np.clip(np.quantile(means, (tail, 1 - tail)), *within)
    return Interval(float(values.mean()), float(low), float(high), values.shape[1])


def _seed_variance(values: NDArray[np.float64]) -> float:
    """Variance between seeds of the mean over infinitely many responses; 0 or more."""
    seeds, problems = values.shape
    by_seed, by_problem = values.mean(1, keepdims=True), values.mean(0, keepdims=True)
    rest = values - by_seed - by_problem + values.mean()
    within = float((rest**2).sum()) / ((seeds - 1) * (problems - 1))
    return max(0.0, float(by_seed.var(ddof=1)) - within / problems)
