"""Group statistics by hand, and exact zeros."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_rlvr.numerics.groups import (
    centered,
    group_mean,
    leave_one_out,
    sample_std,
    standardized,
    token_variance,
)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def test_one_right_of_four():
    r = row(1.0, 0.0, 0.0, 0.0)
    assert centered(r)[0].tolist() == [0.75, -0.25, -0.25, -0.25]
    assert leave_one_out(r)[0].tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert float(sample_std(r)) == 0.5
    assert standardized(r, 0.0)[0].tolist() == [1.5, -0.5, -0.5, -0.5]
    assert float(group_mean(r)) == 0.25


@settings(deadline=None)
@given(st.floats(-1e3, 1e3), st.integers(2, 9))
def test_agreement_is_exactly_zero(value, size):
    r = row(*[value] * size)
    for statistic in (centered(r), leave_one_out(r), standardized(r, 1e-6), sample_std(r)):
        assert not statistic.any()


def test_a_naive_mean_would_not_be_zero():
    r = row(0.1, 0.1, 0.1)
    assert (r - r.mean()).abs().max() > 0
    assert not centered(r).any()


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_leave_one_out_equals_the_slow_loop(values):
    slow = [v - sum(values[:i] + values[i + 1 :]) / (len(values) - 1) for i, v in enumerate(values)]
    assert leave_one_out(row(*values))[0].tolist() == pytest.approx(slow, abs=1e-12)


def test_groups_are_independent_and_float32_is_lifted():
    r = torch.tensor([[1.0, 0.0], [3.0, 3.0]], dtype=torch.float32)
    result = centered(r)
    assert result.tolist() == [[0.5, -0.5], [0.0, 0.0]]
    assert result.dtype == torch.float64


def test_variance_over_the_tokens_of_a_group():
    values = torch.tensor([[[1.0, 3.0], [5.0, torch.nan]], [[2.0, 2.0], [2.0, 2.0]]])
    mask = torch.tensor([[[True, True], [True, False]], [[True, True], [True, True]]])
    assert token_variance(values, mask).tolist() == pytest.approx([8 / 3, 0.0], abs=1e-15)
