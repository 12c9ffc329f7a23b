"""Log-mean-exp, softmax and effective sample size, also where the weights themselves overflow."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_rlvr.numerics.logspace import (
    LogWeights,
    log_mean_exp,
    log_mean_exp_gap,
    softmax_weights,
)

logs = st.lists(st.floats(-30, 30), min_size=1, max_size=12)


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


@settings(deadline=None)
@given(logs)
def test_log_mean_exp_equals_the_slow_definition(values):
    slow = math.log(math.fsum(map(math.exp, values)) / len(values))
    assert float(log_mean_exp(vector(values))) == pytest.approx(slow, abs=1e-12)


@settings(deadline=None)
@given(logs, st.floats(-1e5, 1e5))
def test_gap_is_not_negative_and_blind_to_a_shift(values, shift):
    gap = float(log_mean_exp_gap(vector(values)))
    assert gap >= -1e-13
    assert float(log_mean_exp_gap(vector(values) + shift)) == pytest.approx(gap, abs=1e-9)


@pytest.mark.parametrize("size", range(2, 12))
def test_gap_of_agreement_and_its_gradient(size):
    x = torch.full((size,), 1000.0, dtype=torch.float64, requires_grad=True)
    gap = log_mean_exp_gap(x)
    gap.backward()
    assert abs(gap.item()) < 1e-15
    assert x.grad.abs().max() < 1e-15
    y = torch.tensor([3.0, 1.0], dtype=torch.float64, requires_grad=True)
    log_mean_exp_gap(y).backward()
    q = 1 / (1 + math.exp(-2))
    assert y.grad.tolist() == pytest.approx([q - 0.5, 0.5 - q], abs=1e-15)


def test_softmax_among():
    x = vector([5.0, math.log(3), 0.0])
    assert softmax_weights(x, torch.tensor([False, True, True])).tolist() == pytest.approx(
        [0.0, 0.75, 0.25]
    )
    assert softmax_weights(vector([1e4, 0.0])).tolist() == [1.0, 0.0]


@settings(deadline=None)
@given(logs)
def test_ess_equals_the_slow_definition_and_stays_in_its_range(values):
    w = [math.exp(v) for v in values]
    slow = sum(w) ** 2 / (len(w) * sum(x * x for x in w))
    ess = LogWeights.of(vector(values)).ess
    assert ess == pytest.approx(slow, rel=1e-9)
    assert 1 / len(values) - 1e-12 <= ess <= 1 + 1e-12


def test_ess_by_hand_and_far_beyond_overflow():
    assert LogWeights.of(vector([0.0, math.log(3)])).ess == pytest.approx(16 / 20)
    assert LogWeights.of(vector([5000.0, 5000.0, -5000.0])).ess == pytest.approx(2 / 3)
    assert LogWeights.of(vector([5000.0, 0.0, 0.0, 0.0])).ess == pytest.approx(1 / 4)
    assert LogWeights.of(vector([-2.0] * 5)).ess == pytest.approx(1.0)


@settings(deadline=None)
@given(logs, logs)
def test_weights_of_two_batches_pool(first, second):
    pooled = LogWeights.of(vector(first)) + LogWeights.of(vector(second))
    whole = LogWeights.of(vector(first + second))
    assert pooled.ess == pytest.approx(whole.ess, rel=1e-9)
    assert pooled.count == whole.count


def test_among_and_nothing():
    x = vector([0.0, 100.0, 0.0])
    assert LogWeights.of(x, torch.tensor([True, False, True])).ess == pytest.approx(1.0)
    none = LogWeights.of(x, torch.zeros(3, dtype=torch.bool))
    assert math.isnan(none.ess)
    assert (none + LogWeights.of(x)).ess == pytest.approx(LogWeights.of(x).ess)
