"""Clip, dual clip, penalty: each branch by hand."""

import math
from dataclasses import replace

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load

HIGH, LOW = 1 / math.sqrt(2), -1 / math.sqrt(2)  # standardized rewards (1, 0), sample std


def run(ratios, rewards=(1.0, 0.0), reference=None, **params):
    """One group of two single-token responses with these policy/behavior ratios."""
    log_ratio = torch.tensor(ratios, dtype=torch.float64).log()[None, :, None]
    behavior = torch.full_like(log_ratio, -300.0)
    policy = (behavior + log_ratio).requires_grad_()
    mask = torch.ones_like(log_ratio, dtype=torch.bool)
    batch = TokenBatch(
        policy,
        behavior,
        torch.tensor([rewards], dtype=torch.float64),
        mask,
        ref_logprobs=None if reference is None else policy.detach() + reference,
    )
    out = load("grpo", **params)(batch, Totals(1, 2))
    out.loss.backward()
    return out, policy.grad[0, :, 0].tolist()


@pytest.mark.parametrize(
    ("ratios", "value", "alive"),
    [
        ((1.1, 0.9), HIGH * 1.1 + LOW * 0.9, (True, True)),
        ((1.3, 0.9), HIGH * 1.2 + LOW * 0.9, (False, True)),  # good and already up: no gradient
        ((0.5, 0.9), HIGH * 0.5 + LOW * 0.9, (True, True)),  # good but down: full gradient
        ((1.1, 0.5), HIGH * 1.1 + LOW * 0.8, (True, False)),  # bad and already down: none
        ((1.1, 5.0), HIGH * 1.1 + LOW * 5.0, (True, True)),  # bad but up: full gradient
        ((1.1, 15.0), HIGH * 1.1 + LOW * 10.0, (True, False)),  # bad and far up: dual clip
    ],
)
def test_each_branch(ratios, value, alive):
    out, gradient = run(ratios, kl_coef=0.0)
    # the stabilizer 1e-6 moves the advantages by 1e-6 relative
    assert out.loss.item() == pytest.approx(-value / 2, rel=1e-5)
    expected = [
        -a * r / 2 if live else 0.0 for a, r, live in zip((HIGH, LOW), ratios, alive, strict=True)
    ]
    assert gradient == pytest.approx(expected, rel=1e-5, abs=1e-15)
    assert out.metrics["objective/clip_fraction"].mean == alive.count(False) / 2


def test_a_shift_is_added_to_every_advantage():
    _, gradient = run((1.1, 0.9), kl_coef=0.0, advantage_shift=0.5)
    expected = [-(HIGH + 0.5) * 1.1 / 2, -(LOW + 0.5) * 0.9 / 2]
    assert gradient == pytest.approx(expected, rel=1e-5)
    _, gradient = run((1.3, 1.3), (0.3, 0.3), kl_coef=0.0, advantage_shift=0.5)
    assert gradient == [0.0, 0.0]  # above the clip a positive shift is switched off


def test_penalty_by_hand():
    out, gradient = run((1.0, 1.0), (0.3, 0.3), reference=0.5, kl_coef=0.1)
    assert out.loss.item() == pytest.approx(0.1 * (math.exp(0.5) - 0.5 - 1), abs=1e-14)
    assert gradient == pytest.approx([-0.1 * (math.exp(0.5) - 1) / 2] * 2, abs=1e-14)
    penalty = out.metrics["objective/kl_penalty"].mean
    assert penalty == pytest.approx(math.exp(0.5) - 1.5, abs=1e-14)


def test_penalty_beyond_30_nats_pushes_up_with_a_bounded_force():
    _, near = run((1.0, 1.0), (0.3, 0.3), reference=29.9, kl_coef=1.0)
    _, far = run((1.0, 1.0), (0.3, 0.3), reference=200.0, kl_coef=1.0)
    assert near[0] == pytest.approx(-math.expm1(29.9) / 2, rel=1e-12)
    assert far[0] == pytest.approx(-math.expm1(30.0) / 2, rel=1e-12)


def test_equal_rewards_give_exactly_nothing():
    _, gradient = run((1.5, 0.7), (0.1, 0.1), kl_coef=0.0)
    assert gradient == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clipped_token_200_nats_away_leaves_the_others_alone(dtype, random_batch, evaluate):
    batch = random_batch(dtype=dtype)
    grpo = load("grpo", kl_coef=0.0)
    _, calm = evaluate(grpo, batch)
    behavior = batch.behavior_logprobs.clone()
    behavior[0, 0, 0] = batch.policy_logprobs.detach()[0, 0, 0] - 200  # reward 1, so A > 0
    _, gradient = evaluate(grpo, replace(batch, behavior_logprobs=behavior))
    assert gradient[0, 0, 0] == 0.0
    gradient[0, 0, 0] = calm[0, 0, 0]
    assert torch.equal(gradient, calm)
