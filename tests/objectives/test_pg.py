"""Importance-weighted policy gradient."""

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics.ratios import MAX_LOG_RATIO
from offline_rlvr.objectives import load


def batch_of(log_ratios, rewards):
    ratio = torch.tensor(log_ratios, dtype=torch.float64)[None, :, None]
    behavior = torch.full_like(ratio, -700.0)
    mask = torch.ones_like(ratio, dtype=torch.bool)
    return TokenBatch(
        behavior + ratio, behavior, torch.tensor([rewards], dtype=torch.float64), mask
    )


def test_by_hand():
    ln2 = torch.log(torch.tensor(2.0, dtype=torch.float64)).item()
    out = load("pg")(batch_of([ln2, -ln2], [1.0, 0.0]), Totals(1, 2))
    assert out.coefficients[0, :, 0].tolist() == pytest.approx([1.0, -0.25], abs=1e-12)
    assert out.loss.item() == pytest.approx(-((-700 + ln2) - 0.25 * (-700 - ln2)) / 2, rel=1e-12)


def test_saturation_is_counted():
    out = load("pg")(batch_of([MAX_LOG_RATIO + 1, 0.0], [1.0, 0.0]), Totals(1, 2))
    assert out.metrics["objective/ratio_saturated"].mean == 0.5
    below = load("pg")(batch_of([MAX_LOG_RATIO - 1, 0.0], [1.0, 0.0]), Totals(1, 2))
    assert below.metrics["objective/ratio_saturated"].mean == 0.0
