"""Coefficients from rewards alone."""

import math

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load


def test_by_hand():
    p = torch.tensor([[[-1.0], [-2.0], [-4.0]]], dtype=torch.float64)
    rewards = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
    batch = TokenBatch(p, p, rewards, torch.ones_like(p, dtype=torch.bool))
    out = load("ggpo_reward_only", beta=0.5)(batch, Totals(1, 3))
    weights = [math.exp(2.0), math.exp(1.0), 1.0]
    c = [(3 * w / sum(weights) - 1) / math.sqrt(2) for w in weights]
    assert out.coefficients[0].tolist() == pytest.approx(c, abs=1e-14)
    assert out.loss.item() == pytest.approx((c[0] + 2 * c[1] + 4 * c[2]) / 3, abs=1e-14)
