"""The success-normalized advantage."""

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.errors import BatchError
from offline_rlvr.objectives import load


def run(rewards):
    p = torch.full((1, len(rewards), 1), -1.0, dtype=torch.float64)
    r = torch.tensor([rewards], dtype=torch.float64)
    batch = TokenBatch(p, p, r, torch.ones_like(p, dtype=torch.bool))
    return load("maxrl")(batch, Totals(1, len(rewards)))


def test_by_hand():
    out = run([1.0, 0.0, 0.0, 0.0])
    assert out.coefficients[0].tolist() == [3.0, -1.0, -1.0, -1.0]
    # coefficients sum to 0 and every s is -1
    assert out.loss.item() == 0.0


def test_all_wrong_gives_nothing():
    assert run([0.0, 0.0]).coefficients[0].tolist() == [0.0, 0.0]


def test_negative_rewards_are_refused():
    with pytest.raises(BatchError, match=r"group 0, response 1 has reward -1.0"):
        run([1.0, -1.0])
