"""Bootstrap intervals: coverage, pairing, strata, degenerate cases."""

import numpy as np
import pytest

from offline_rlvr.errors import ConfigError
from offline_rlvr.evaluation import bootstrap_interval, paired_difference
from offline_rlvr.evaluation.intervals import Interval

NAN = float("nan")


def accuracies(rng, problems, n=8):
    """[P] mean@n of problems whose difficulty varies as Beta(1, 2): true mean 1/3."""
    return rng.binomial(n, rng.beta(1, 2, problems)) / n


@pytest.mark.parametrize("method", ["bca", "percentile"])
def test_covers_the_true_mean_about_as_often_as_it_says(method):
    rng = np.random.default_rng(7)
    trials, covered = 400, 0
    for trial in range(trials):
        interval = bootstrap_interval(accuracies(rng, 60), resamples=400, seed=trial, method=method)
        covered += interval.low <= 1 / 3 <= interval.high
    # 95 % +- 2.2 points is two standard errors of 400 trials; a bootstrap is a little short of it.
    assert 0.915 <= covered / trials <= 0.975


def test_level_is_the_coverage():
    values = accuracies(np.random.default_rng(0), 200)
    narrow = bootstrap_interval(values, level=0.5)
    wide = bootstrap_interval(values, level=0.99)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high


def test_agrees_with_the_normal_interval_for_many_problems():
    values = accuracies(np.random.default_rng(1), 2000)
    interval = bootstrap_interval(values)
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_bca_leans_towards_the_long_tail():
    """Rare successes: the upper end is farther from the mean than the percentile one."""
    values = np.array([1.0] * 4 + [0.0] * 96)
    bca = bootstrap_interval(values)
    percentile = bootstrap_interval(values, method="percentile")
    assert bca.high > percentile.high
    assert bca.low >= percentile.low


def test_seeded():
    values = accuracies(np.random.default_rng(2), 50)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_unmeasured_problems_are_left_out_and_counted():
    interval = bootstrap_interval([0.0, NAN, 1.0, 1.0])
    assert (interval.value, interval.problems) == (pytest.approx(2 / 3), 3)


@pytest.mark.parametrize(
    ("values", "value", "problems"), [([], NAN, 0), ([NAN], NAN, 0), ([0.25], 0.25, 1)]
)
def test_no_interval_from_fewer_than_two_problems(values, value, problems):
    interval = bootstrap_interval(values)
    assert interval.problems == problems
    assert np.isnan([interval.low, interval.high]).all()
    np.testing.assert_equal(interval.value, value)
    assert interval.as_dict()["low"] is None


def test_equal_values_give_a_point():
    assert bootstrap_interval([0.5] * 10) == Interval(0.5, 0.5, 0.5, 10)


def test_benchmarks_weigh_as_many_problems_as_they_have():
    easy, hard = np.ones(10), np.zeros(30)
    both = bootstrap_interval(easy, hard)
    assert both.value == 0.25  # not 0.5, the mean of the benchmarks
    # Each benchmark is resampled within itself: no uncertainty here. Pooled draws would vary.
    assert (both.low, both.high) == (0.25, 0.25)
    pooled = bootstrap_interval(np.concatenate([easy, hard]))
    assert pooled.high - pooled.low > 0.2


def test_a_paired_difference_is_sharper_than_two_intervals():
    rng = np.random.default_rng(5)
    before = accuracies(rng, 300)
    after = np.clip(before + 0.05 + rng.normal(0, 0.02, 300), 0, 1)
    ids = [f"p{i}" for i in range(300)]
    shuffled = dict(sorted(zip(ids, after, strict=True), reverse=True))
    interval = paired_difference(dict(zip(ids, before, strict=True)), shuffled)
    assert interval.value == pytest.approx((after - before).mean())
    assert 0.03 < interval.low < interval.value < interval.high < 0.07


def test_pairs_are_matched_by_problem():
    interval = paired_difference({"a": 0.0, "b": 1.0, "c": NAN}, {"b": 1.0, "c": 1.0, "a": 0.5})
    assert (interval.value, interval.problems) == (0.25, 2)
    swapped = paired_difference({"a": 0.5, "b": 1.0}, {"b": 1.0, "a": 0.0})
    assert swapped.value == -0.25


def test_nothing_in_common_is_refused():
    with pytest.raises(ConfigError, match="share no problem"):
        paired_difference({"a": 1.0}, {"b": 1.0})


@pytest.mark.parametrize("bad", [{"level": 1.0}, {"level": 0.0}, {"resamples": 10}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ConfigError, match="resamples"):
        bootstrap_interval([0.0, 1.0], **bad)
