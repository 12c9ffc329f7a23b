"""mean@k and pass@k against values worked out by hand and against enumeration."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_rlvr.errors import ConfigError
from offline_rlvr.evaluation import mean_at_k, pass_at_k, pass_at_k_of
from offline_rlvr.numerics.pass_at_k import powers_of_two

NAN = float("nan")


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 3 of the 6 pairs hold the right one
        (4, 2, 2, 5 / 6),  # 1 of the 6 pairs is two wrong ones
        (5, 2, 3, 9 / 10),  # C(3,3)/C(5,3) = 1/10
        (10, 3, 5, 11 / 12),  # C(7,5)/C(10,5) = 21/252
        (8, 0, 8, 0.0),
        (8, 1, 8, 1.0),
        (8, 8, 1, 1.0),
        (8, 6, 3, 1.0),  # only two wrong ones: three draws cannot all be wrong
    ],
)
def test_hand_worked_values(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-15)


def test_enumeration_of_all_draws():
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                draws = list(combinations([1] * c + [0] * (n - c), k))
                expected = sum(any(draw) for draw in draws) / len(draws)
                assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-14)


def test_large_n_is_exact_where_binomials_overflow():
    n, c, k = 4000, 3, 1500
    exact = 1 - comb(n - c, k) / comb(n, k)  # Python integers do not overflow
    assert pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-12)


def test_pass_at_1_is_the_mean_even_when_tiny():
    assert pass_at_k(10**6, 1, 1) == pytest.approx(1e-6, rel=1e-12)


def test_vectorised_over_problems():
    result = pass_at_k([4, 5, 8], [2, 2, 0], 2)
    np.testing.assert_allclose(result, [5 / 6, 7 / 10, 0.0], atol=1e-15)


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_grows_with_k_and_with_c(n, data):
    c = data.draw(st.integers(0, n))
    values = [float(pass_at_k(n, c, k)) for k in range(1, n + 1)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(c / n, abs=1e-14)
    assert values[-1] == (c > 0)
    if c < n:
        assert all(pass_at_k(n, c + 1, k) >= pass_at_k(n, c, k) for k in range(1, n + 1))


def test_unbiased_for_the_true_chance():
    """The mean over all samples of 5 equals 1 - (1-p)^k; that of the plug-in estimate does not."""
    p, n, k = 0.3, 5, 3
    weights = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = float(np.dot(weights, pass_at_k(n, np.arange(n + 1), k)))
    plug_in = float(np.dot(weights, 1 - (1 - np.arange(n + 1) / n) ** k))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-14)
    assert abs(plug_in - (1 - (1 - p) ** k)) > 0.02


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (4, 1, 5, "pass@5 needs at least 5 responses per problem; found 4"),
        ([8, 3], [1, 1], 4, "found 3"),
        (4, 1, 0, "pass@0 is not defined"),
        (4, 5, 1, "5 right responses of 4"),
        (4, -1, 1, "-1 right responses of 4"),
    ],
)
def test_impossible_requests_are_refused(n, c, k, message):
    with pytest.raises(ConfigError, match=message):
        pass_at_k(n, c, k)


def test_unscored_responses_are_not_wrong_answers():
    rewards = [[1, 0, NAN, NAN], [0, 0, 0, 1], [NAN, NAN, NAN, NAN]]
    np.testing.assert_array_equal(mean_at_k(rewards), [0.5, 0.25, NAN])
    np.testing.assert_allclose(pass_at_k_of(rewards, 1), [0.5, 0.25, NAN])
    # Two scored responses, one right: every pair is right. Counting nan as wrong would give 1/2.
    np.testing.assert_allclose(pass_at_k_of(rewards, 2), [1.0, 0.5, NAN])
    # pass@4 is not defined with two scored responses.
    np.testing.assert_allclose(pass_at_k_of(rewards, 4), [NAN, 1.0, NAN])


def test_a_partial_reward_counts_in_the_mean_only():
    assert mean_at_k([[0.5, 1.0]])[0] == 0.75
    assert pass_at_k_of([[0.5, 1.0]], 1)[0] == 0.5


@pytest.mark.parametrize("k", [0, 5])
def test_k_out_of_range_of_the_table_is_refused(k):
    with pytest.raises(ConfigError, match=f"pass@{k}"):
        pass_at_k_of([[1.0, 0.0, 0.0, 1.0]], k)


def test_a_flat_list_of_rewards_is_refused():
    with pytest.raises(ConfigError, match="expected \\[problems, n\\]"):
        mean_at_k([1.0, 0.0])


def test_reported_ks():
    assert powers_of_two(1) == [1]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert powers_of_two(24) == [1, 2, 4, 8, 16, 24]
