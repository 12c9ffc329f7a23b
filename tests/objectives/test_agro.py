"""Leave-one-out centered adjusted rewards."""

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load


def coefficients(deltas, rewards, beta):
    delta = torch.tensor(deltas, dtype=torch.float64)[None, :, None]
    reference = torch.full_like(delta, -9.0)
    mask = torch.ones_like(delta, dtype=torch.bool)
    r = torch.tensor([rewards], dtype=torch.float64)
    batch = TokenBatch(reference + delta, reference, r, mask, ref_logprobs=reference)
    return load("agro", beta=beta)(batch, Totals(1, len(deltas))).coefficients[0]


def test_by_hand():
    # z = (1 - 0.1, 0 + 0.2, 0) = (0.9, 0.2, 0); the others' means are 0.1, 0.45, 0.55
    c = coefficients([0.5, -1.0, 0.0], [1.0, 0.0, 0.0], beta=0.2)
    assert c.tolist() == pytest.approx([0.8, -0.25, -0.55], abs=1e-14)


@pytest.mark.parametrize("k", range(1, 8))
def test_sum_over_right_responses_at_equal_delta(k):
    m = 8
    c = coefficients([0.7] * m, [1.0] * k + [0.0] * (m - k), beta=0.01)
    assert float(c[:k].sum()) == pytest.approx(k * (m - k) / (m - 1), abs=1e-12)
