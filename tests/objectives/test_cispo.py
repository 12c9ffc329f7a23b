"""A clipped, detached weight that keeps its token's gradient."""

import math

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load


@pytest.mark.parametrize(("low", "weights"), [(None, [1.28, 0.5, 1.1]), (0.28, [1.28, 0.72, 1.1])])
def test_by_hand(low, weights):
    ratio = torch.tensor([2.0, 0.5, 1.1], dtype=torch.float64).log()[None, :, None]
    behavior = torch.full_like(ratio, -1.0)
    policy = (behavior + ratio).requires_grad_()
    rewards = torch.tensor([[1.0, 0.0, 0.5]], dtype=torch.float64)
    mask = torch.ones_like(ratio, dtype=torch.bool)
    batch = TokenBatch(policy, behavior, rewards, mask)
    out = load("cispo", clip_low=low)(batch, Totals(1, 3))
    out.loss.backward()
    expected = [-w * a / 3 for w, a in zip(weights, [0.5, -0.5, 0.0], strict=True)]
    assert policy.grad[0, :, 0].tolist() == pytest.approx(expected, abs=1e-14)
    share = 1 / 3 if low is None else 2 / 3
    assert out.metrics["objective/clip_fraction"].mean == pytest.approx(share)
    assert math.isfinite(out.loss.item())
