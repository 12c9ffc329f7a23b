"""Full weight on positive, tapered weight on negative examples."""

import math

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load


def coefficients(log_ratios, rewards, **params):
    """Two tokens per response, each with half of the sequence log-ratio."""
    ratio = torch.tensor(log_ratios, dtype=torch.float64)[None, :, None].expand(-1, -1, 2) / 2
    behavior = torch.full_like(ratio, -200.0)
    mask = torch.ones_like(ratio, dtype=torch.bool)
    r = torch.tensor([rewards], dtype=torch.float64)
    out = load("topr", **params)(
        TokenBatch(behavior + ratio, behavior, r, mask), Totals(1, 2 * len(rewards))
    )
    return out.coefficients[0].tolist(), out.metrics["objective/negative_weight"].mean


def test_by_hand():
    # right ones: +1 whatever the ratio; wrong ones: -min(ratio, 1) with the ratio of the sequence
    c, weight = coefficients([3.0, -3.0, math.log(0.25), 2.0], [1.0, 1.0, 0.0, 0.0])
    assert c == pytest.approx([1.0, 1.0, -0.25, -1.0], abs=1e-12)
    assert weight == pytest.approx(0.625)


def test_baseline_moves_an_example_across_zero():
    c, _ = coefficients([-1.0, -1.0], [0.5, 1.0], baseline=0.25)  # R = 0, 1 -> -0.25, 0.75
    assert c == pytest.approx([-0.25 * math.exp(-1), 0.75], abs=1e-12)


def test_far_off_policy_negatives_stop_pushing():
    c, _ = coefficients([-200.0, -200.0], [1.0, 0.0])
    assert c[0] == 1.0
    assert -1e-80 < c[1] <= 0.0
