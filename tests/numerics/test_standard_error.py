"""Standard errors over groups against the textbook and against derivatives."""

import math

import pytest
import torch

from offline_rlvr.numerics import standard_error
from offline_rlvr.numerics.logspace import LogWeights


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_a_ratio_by_hand():
    # R = 8 / 4 = 2; residuals 1 - 2, 7 - 6: se^2 = 2 / 1 * (1 + 1) / 16
    sums, counts = torch.tensor([1.0, 7.0]).double(), torch.tensor([1.0, 3.0]).double()
    assert float(standard_error.of_ratio(sums, counts)) == pytest.approx(0.5)


def test_a_ratio_with_equal_counts_is_a_mean():
    means = draw(20)
    error = standard_error.of_ratio(5 * means, torch.full_like(means, 5.0))
    assert float(error) == pytest.approx(float(means.std()) / math.sqrt(20))


def test_an_ess_from_its_derivatives():
    w = draw(6, 4)
    times = torch.ones(6, dtype=torch.float64, requires_grad=True)  # how often each group counts
    first, second = (times @ (power * w).exp().sum(-1) for power in (1, 2))
    ess = first.square() / (4 * times.sum() * second)
    assert ess.item() == pytest.approx(LogWeights.of(w).ess)
    (u,) = torch.autograd.grad(ess, times)
    assert float(u.sum()) == pytest.approx(0, abs=1e-12)
    expected = math.sqrt(6 / 5 * float(u.square().sum()))
    assert float(standard_error.of_ess(w)) == pytest.approx(expected)


def test_an_ess_has_an_error_where_no_weight_can_be_formed():
    w = draw(6, 4)
    assert float(standard_error.of_ess(w - 2000)) == pytest.approx(float(standard_error.of_ess(w)))


def test_equal_groups_have_no_error():
    assert float(standard_error.of_ess(torch.full((3, 2), -5.0))) == pytest.approx(0, abs=1e-15)
    assert float(standard_error.of_ratio(torch.ones(3).double(), 2 * torch.ones(3).double())) == 0
