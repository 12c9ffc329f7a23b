"""GGPO by hand, and the paper's facts about its coefficients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load

SMALL_BETA = 1e-3


def group(deltas: list[float], rewards: list[float], beta: float):
    """Coefficients and loss of one group of single-token responses with these Deltas."""
    delta = torch.tensor(deltas, dtype=torch.float64)[None, :, None]
    reference = torch.full_like(delta, -30.0)
    mask = torch.ones_like(delta, dtype=torch.bool)
    r = torch.tensor([rewards], dtype=torch.float64)
    batch = TokenBatch(reference + delta, reference, r, mask, ref_logprobs=reference)
    out = load("ggpo", beta=beta)(batch, Totals(1, len(deltas)))
    return out.coefficients[0], out.loss.item()


def test_two_responses_by_hand():
    # R = (1, 0) at beta 1: J = log((e + 1) / 2) - 1/2; m = N = 2, sqrt(m - 1) = 1
    c, loss = group([0.0, 0.0], [1.0, 0.0], beta=1.0)
    assert loss == pytest.approx(math.log((math.e + 1) / 2) - 0.5, abs=1e-14)
    q = math.e / (math.e + 1)
    assert c.tolist() == pytest.approx([2 * q - 1, 1 - 2 * q], abs=1e-14)


def test_zero_exactly_when_adjusted_rewards_agree():
    beta = 0.1
    c, loss = group([10.0, 0.0, 0.0], [1.0, 0.0, 0.0], beta)  # r / beta - Delta = 0 for all
    assert loss == pytest.approx(0.0, abs=1e-14)
    assert c.abs().max() < 1e-14
    _, apart = group([10.0, 0.1, 0.0], [1.0, 0.0, 0.0], beta)
    assert apart > 1e-4


@settings(deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=8),
    st.floats(1e-3, 10),
    st.randoms(use_true_random=False),
)
def test_never_negative_and_coefficients_sum_to_zero(deltas, beta, random):
    rewards = [float(random.random() < 0.5) for _ in deltas]
    c, loss = group(deltas, rewards, beta)
    assert loss >= -1e-9
    assert abs(float(c.sum())) < 1e-9


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_a_lone_right_response_is_never_pushed_down(deltas):
    c, _ = group(deltas, [1.0] + [0.0] * (len(deltas) - 1), SMALL_BETA)
    assert c[0] >= 0


@settings(deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=8), st.data())
def test_when_a_right_response_is_pushed_down(deltas, data):
    m = len(deltas)
    k = data.draw(st.integers(2, m - 1))
    c, _ = group(deltas, [1.0] * k + [0.0] * (m - k), SMALL_BETA)
    for i in range(k):
        others = [math.exp(-deltas[j]) for j in range(k) if j != i]
        mean_other = -math.log(sum(others) / (k - 1))
        excess = deltas[i] - mean_other - math.log((m - 1) / (k - 1))
        if abs(excess) > 1e-6:
            assert (float(c[i]) < 0) == (excess > 0)


def test_a_right_response_is_pushed_down_by_hand():
    # m = 4, k = 2: the threshold is log 3 above the other right response
    for gap, negative in ((math.log(3) - 0.01, False), (math.log(3) + 0.01, True)):
        c, _ = group([gap, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], SMALL_BETA)
        assert (float(c[0]) < 0) is negative


@pytest.mark.parametrize("beta", [0.01, 1.0, 100.0])
def test_weight_ratio_within_a_class_does_not_depend_on_beta(beta):
    deltas, m = [0.3, -0.9, 0.2, 1.1], 4
    c, _ = group(deltas, [1.0, 1.0, 0.0, 0.0], beta)
    q = (c * math.sqrt(m - 1) + 1) / m
    assert float(q[0] / q[1]) == pytest.approx(math.exp(-(0.3 + 0.9)), rel=1e-9)
    if beta > 0.5:  # the wrong ones' weights are not lost below float64's digits
        assert float(q[2] / q[3]) == pytest.approx(math.exp(-(0.2 - 1.1)), rel=1e-9)


def test_after_a_refresh_equal_rewards_get_equal_weight_and_wrong_ones_the_floor():
    c, _ = group([0.0] * 8, [1.0, 1.0, 1.0] + [0.0] * 5, SMALL_BETA)
    right = (8 / 3 - 1) / math.sqrt(7)
    expected = [right] * 3 + [-1 / math.sqrt(7)] * 5
    assert c.tolist() == pytest.approx(expected, abs=1e-12)


def test_digits_survive_a_tiny_beta_in_float32():
    delta = torch.tensor([[[1e-3], [0.0], [0.0]]], dtype=torch.float32)
    batch = TokenBatch(
        delta - 1,
        torch.full_like(delta, -1.0),
        torch.tensor([[1.0, 1.0, 0.0]]),
        torch.ones_like(delta, dtype=torch.bool),
        ref_logprobs=torch.full_like(delta, -1.0),
    )
    c = load("ggpo", beta=1e-6)(batch, Totals(1, 3)).coefficients[0]
    q = (c * math.sqrt(2) + 1) / 3
    measured = float((batch.policy_logprobs[0, 0, 0].double() + 1).item())
    assert float(torch.log(q[1] / q[0])) == pytest.approx(measured, rel=1e-9)
