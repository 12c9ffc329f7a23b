"""Sums that padding cannot reach."""

import math

import pytest
import torch

from offline_rlvr.numerics.masked import (
    SumCount,
    share,
    sum_count,
    token_mean,
    token_sum,
    total,
    without_padding,
)

NAN, INF = float("nan"), float("inf")


def test_token_sum_and_mean_ignore_junk_in_value_and_gradient():
    values = torch.tensor([[1.0, 2.0, NAN], [4.0, INF, -INF]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert token_sum(values, mask).tolist() == [3.0, 4.0]
    mean = token_mean(values, mask)
    assert mean.tolist() == [1.5, 4.0]
    assert mean.dtype == torch.float64
    mean.exp().sum().backward()
    expected = [[math.exp(1.5) / 2] * 2 + [0.0], [math.exp(4.0), 0.0, 0.0]]
    assert values.grad.tolist() == [pytest.approx(row) for row in expected]


def test_pairs_pool_instead_of_averaging_means():
    # 2 tokens of loss 1 and 8 tokens of loss 5: 4.2, not 3
    one = total(torch.full((2,), 1.0))
    five = total(torch.full((8,), 5.0))
    assert (one + five).mean == pytest.approx(4.2)


def test_share_and_empty_pair():
    hits = torch.tensor([True, False, True, True])
    mask = torch.tensor([True, True, True, False])
    assert share(hits, mask).mean == pytest.approx(2 / 3)
    assert math.isnan(share(hits, torch.zeros(4, dtype=torch.bool)).mean)


def test_pairs_are_detached_float64():
    x = torch.ones(3, requires_grad=True)
    pair = sum_count(x, torch.ones(3, dtype=torch.bool))
    assert not pair.sum.requires_grad
    assert pair.sum.dtype == pair.count.dtype == torch.float64
    zero = torch.zeros((), dtype=torch.float64)
    assert (pair + SumCount(zero, zero)).mean == 1.0


def test_without_padding_leaves_the_input_alone():
    x = torch.tensor([NAN, 1.0])
    assert without_padding(x, torch.tensor([False, True])).tolist() == [0.0, 1.0]
    assert math.isnan(x[0])
