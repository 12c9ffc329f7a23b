"""The clip acts on the weights alone."""

import math

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load


def two_tokens():
    """One group: token log-ratios (0.3, -0.02), (0.01, 0) and (0, 0)."""
    ratio = torch.tensor([[[0.3, -0.02], [0.01, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    reference = torch.full_like(ratio, -1.0)
    mask = torch.ones_like(ratio, dtype=torch.bool)
    rewards = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    policy = (reference + ratio).requires_grad_()
    return TokenBatch(policy, reference, rewards, mask, ref_logprobs=reference)


def test_by_hand():
    batch = two_tokens()
    out = load("ggpo_clipped", beta=2.0, clip=0.05)(batch, Totals(1, 6))
    logits = [0.5 - (0.05 - 0.02), -0.01, 0.0]
    weights = [math.exp(x) for x in logits]
    c = [(3 * w / sum(weights) - 1) / math.sqrt(2) for w in weights]
    assert out.coefficients[0].tolist() == pytest.approx(c, abs=1e-14)
    s = batch.policy_logprobs.detach()[0].sum(-1).tolist()  # the score is not clipped
    expected = -sum(a * b for a, b in zip(c, s, strict=True)) / 6
    assert out.loss.item() == pytest.approx(expected, abs=1e-14)
    assert out.metrics["objective/clip_fraction"].mean == pytest.approx(1 / 6)


def test_a_saturated_token_keeps_its_score_gradient():
    batch = two_tokens()
    load("ggpo_clipped", beta=2.0, clip=0.05)(batch, Totals(1, 6)).loss.backward()
    gradient = batch.policy_logprobs.grad[0, 0]
    assert gradient[0] == gradient[1] != 0  # token 0 is beyond the clip, token 1 is not


def test_both_ends_of_the_clip_count():
    out = load("ggpo_clipped", beta=2.0, clip=0.015)(two_tokens(), Totals(1, 6))
    assert out.metrics["objective/clip_fraction"].mean == pytest.approx(2 / 6)  # 0.3 and -0.02
