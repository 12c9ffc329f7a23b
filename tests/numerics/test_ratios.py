"""Ratios that stay finite, and the two clips."""

import math

import pytest
import torch

from offline_rlvr.numerics.ratios import (
    MAX_LOG_RATIO,
    clipped_surrogate,
    k3_penalty,
    k3_penalty_slope,
    ratio,
    saturated,
)


def leaf(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def test_ratio_is_exp_below_the_limit():
    x = leaf(-200.0, -1.0, 0.0, 2.0, MAX_LOG_RATIO, 200.0)
    value = ratio(x)
    expected = [math.exp(v) for v in (-200.0, -1.0, 0.0, 2.0, MAX_LOG_RATIO, MAX_LOG_RATIO)]
    assert value.tolist() == pytest.approx(expected, rel=1e-14)
    assert saturated(x).tolist() == [False] * 5 + [True]
    value.sum().backward()
    assert x.grad.tolist() == pytest.approx([*expected[:5], 0.0], rel=1e-14)


def test_ratio_with_a_cap():
    x = torch.tensor([-1.0, 0.5, 1.0, 500.0], dtype=torch.float64)
    expected = [math.exp(-1.0), math.exp(0.5), 2.0, 2.0]
    assert ratio(x, cap=2.0).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_penalty_gradient_equals_its_slope_and_is_finite(dtype, rel):
    x = leaf(-200.0, -1.0, 0.0, 1e-3, 0.7, 29.0, 31.0, 200.0, dtype=dtype)
    k3_penalty(x).sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.tolist() == pytest.approx(k3_penalty_slope(x.detach()).tolist(), rel=rel)
    inside = x.detach()[:6].double()
    assert k3_penalty(inside).tolist() == pytest.approx(
        (inside.exp() - inside - 1).tolist(), rel=1e-9, abs=1e-15
    )


def test_penalty_is_continuous_with_its_slope_at_the_limit():
    step = 1e-6
    x = torch.tensor([-step, 0.0, step], dtype=torch.float64) + MAX_LOG_RATIO
    below, at, above = k3_penalty(x).tolist()
    slope = math.expm1(MAX_LOG_RATIO)
    assert (at - below) / step == pytest.approx(slope, rel=1e-4)
    assert (above - at) / step == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("rho", [1e-40, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 5.0, 9.9, 10.1, 1e40])
def test_surrogate_equals_the_slow_definition(advantage, rho):
    x = leaf(math.log(rho)).reshape(1, 1, 1)
    x.retain_grad()
    a = torch.tensor([[advantage]], dtype=torch.float64)
    out = clipped_surrogate(x, a, 0.8, 1.2, 10.0)
    out.loss.sum().backward()
    bounded = min(rho, math.exp(MAX_LOG_RATIO))
    slow = max(-advantage * bounded, -advantage * min(max(rho, 0.8), 1.2))
    alive = slow == -advantage * bounded
    if advantage < 0 and slow > -advantage * 10.0:
        slow, alive = -advantage * 10.0, False
    assert out.loss.item() == pytest.approx(slow, rel=1e-12)
    assert bool(out.alive) is alive
    assert x.grad.item() == pytest.approx(-advantage * rho if alive else 0.0, rel=1e-12)
