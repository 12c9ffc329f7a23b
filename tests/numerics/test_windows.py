"""The future window against a loop."""

import pytest
import torch

from offline_rlvr.numerics.windows import future_sum


@pytest.mark.parametrize("horizon", [1, 2, 3, 6, 7, 8, 100, None])
def test_equals_the_slow_loop(horizon):
    x = torch.rand(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slow = torch.zeros_like(x)
    for t in range(7):
        end = 7 if horizon is None else min(t + horizon, 7)
        for k in range(t, end):
            slow[..., t] += x[..., k]
    torch.testing.assert_close(future_sum(x, horizon), slow, rtol=1e-14, atol=1e-14)


def test_by_hand():
    x = torch.tensor([1.0, 10.0, 100.0])
    assert future_sum(x, 2).tolist() == [11.0, 110.0, 100.0]
    assert future_sum(x, None).tolist() == [111.0, 110.0, 100.0]
    assert future_sum(x, 1).tolist() == [1.0, 10.0, 100.0]
