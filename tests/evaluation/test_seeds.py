"""Intervals over problems and seeds: exact where they must be, and as wide as they say."""

import numpy as np
import pytest

from offline_rlvr.evaluation import bootstrap_interval, seeded_interval

RNG = np.random.default_rng(5)


def test_one_seed_is_the_interval_over_problems():
    values = RNG.random(40)
    assert seeded_interval(values[None]) == bootstrap_interval(values)


def test_equal_seeds_add_nothing():
    """No seed differs from another: what is left is the bootstrap of the problems."""
    values = RNG.random(60)
    found = seeded_interval(np.tile(values, (3, 1)))
    alone = bootstrap_interval(values, method="percentile")
    assert (found.value, found.low, found.high) == pytest.approx(
        (alone.value, alone.low, alone.high), abs=1e-12
    )


def test_seeds_that_differ_widen_it():
    values = np.tile(RNG.random(60), (3, 1))
    apart = seeded_interval(values + np.array([[-0.05], [0.0], [0.05]]))
    assert apart.value == pytest.approx(values.mean())
    # Student's t, 2 degrees of freedom: 4.303 standard errors of 0.05 / sqrt 3.
    assert apart.high - apart.low > 2 * 4.0 * 0.05 / 3**0.5


def test_an_interval_does_not_leave_what_a_mean_can_be():
    values = np.tile(RNG.random(60), (2, 1)) * np.array([[0.2], [1.0]])
    wide, kept = seeded_interval(values), seeded_interval(values, within=(0, 1))
    assert wide.low < 0 < 1 < wide.high
    assert (kept.low, kept.high) == (0, 1)
    assert kept.value == wide.value


def test_sets_are_strata_and_unmeasured_problems_are_left_out():
    first, second = RNG.random((2, 10)), RNG.random((2, 30))
    second[1, 4] = np.nan
    found = seeded_interval(first, second)
    assert found.problems == 39
    kept = np.concatenate([first, np.delete(second, 4, axis=1)], axis=1)
    assert found.value == pytest.approx(kept.mean())
    empty, alone = seeded_interval(first[:, :0], second), seeded_interval(second)
    assert (empty.low, empty.high) == pytest.approx((alone.low, alone.high), abs=1e-12)


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.0), (3, 0.02), (5, 0.01)])
def test_nineteen_of_twenty_intervals_hold_the_truth(seeds, spread):
    """Differences of 200 problems whose mean is 0, with and without an effect of the seed."""
    rng, repeats = np.random.default_rng(2), 400
    hits = 0
    for repeat in range(repeats):
        table = rng.normal(0, spread, (seeds, 1)) + rng.normal(0, 0.08, (1, 200))
        table = table + rng.normal(0, 0.1, (seeds, 200))
        found = seeded_interval(table, resamples=1000, seed=repeat)
        hits += found.low <= 0 <= found.high
    assert 0.92 <= hits / repeats <= 0.98
