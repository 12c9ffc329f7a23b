"""K1 and K3 to full accuracy from 1e-12 to beyond overflow."""

import math
from decimal import Decimal, getcontext

import pytest
import torch

from offline_rlvr.numerics.divergence import K3_LIMIT, k1, k3, k3_saturated

getcontext().prec = 60


def exact(x: float) -> float:
    return float(Decimal(x).exp() - Decimal(x) - 1)


@pytest.mark.parametrize(
    "x",
    [1e-12, -1e-9, 3e-7, -1e-4, 9.99e-4, 1.001e-3, -1e-3, 0.02, -0.5, 1.0, -40.0, 100.0, 599.0],
)
def test_k3_relative_accuracy(x):
    value = float(k3(torch.tensor([x], dtype=torch.float64)))
    assert value == pytest.approx(exact(x), rel=2e-12, abs=0)
    assert value >= 0


def test_k3_where_float32_overflows():
    assert float(k3(torch.tensor([100.0]))) == pytest.approx(2.688117e43, rel=1e-6)
    assert math.isinf(torch.tensor(100.0).exp())  # the naive float32 value


def test_equal_policies_give_exactly_zero():
    assert k3(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert k1(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_saturation_is_flagged_not_clamped():
    x = torch.tensor([K3_LIMIT, K3_LIMIT + 1, -1e4], dtype=torch.float64)
    assert k3_saturated(x).tolist() == [False, True, False]
    value = k3(x).tolist()
    assert value[0] == pytest.approx(math.exp(600), rel=1e-12)
    assert math.isinf(value[1])
    assert value[2] == 9999.0


def test_both_estimate_the_divergence():
    q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    kl = float((q * (q / p).log()).sum())
    log_ratio = (p / q).log()  # of tokens drawn from q
    assert float((q * k1(log_ratio)).sum()) == pytest.approx(kl, rel=1e-12)
    assert float((q * k3(log_ratio)).sum()) == pytest.approx(kl, rel=1e-12)
