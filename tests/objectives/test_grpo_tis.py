"""Behavior, old policy and policy are three different things."""

import math
from dataclasses import replace

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load


def test_by_hand():
    # old/mu = 3 -> weight 2; policy/old = 1.1, inside the clip
    behavior = torch.full((1, 2, 1), -5.0, dtype=torch.float64)
    old = behavior + math.log(3)
    policy = (old + math.log(1.1)).requires_grad_()
    rewards = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    mask = torch.ones_like(behavior, dtype=torch.bool)
    reference = policy.detach() + 0.5
    batch = TokenBatch(policy, behavior, rewards, mask, ref_logprobs=reference, old_logprobs=old)
    out = load("grpo_tis", kl_coef=0.1)(batch, Totals(1, 2))
    out.loss.backward()
    a = 1 / math.sqrt(2) / (1 + 1e-6 * math.sqrt(2))
    penalty = 0.1 * math.expm1(0.5)  # not multiplied by the weight
    expected = [-(2 * a * 1.1 + penalty) / 2, -(-2 * a * 1.1 + penalty) / 2]
    assert policy.grad[0, :, 0].tolist() == pytest.approx(expected, rel=1e-12)
    assert out.loss.item() == pytest.approx(0.1 * (math.exp(0.5) - 1.5), rel=1e-9)
    assert out.metrics["objective/tis_capped"].mean == 1.0


def test_setting_any_two_equal_changes_the_result(random_batch, evaluate):
    batch = random_batch(spread=0.3)
    tis = load("grpo_tis")
    _, gradient = evaluate(tis, batch)
    p = batch.policy_logprobs.detach()
    merged = {
        "old = mu": replace(batch, old_logprobs=batch.behavior_logprobs),
        "mu = old": replace(batch, behavior_logprobs=batch.old_logprobs),
        "old = policy": replace(batch, old_logprobs=p),
        "mu = policy": replace(batch, behavior_logprobs=p),
        "policy = old": replace(batch, policy_logprobs=batch.old_logprobs),
        "policy = mu": replace(batch, policy_logprobs=batch.behavior_logprobs),
    }
    results = {name: evaluate(tis, other)[1] for name, other in merged.items()}
    results["as it is"] = gradient
    names = list(results)
    for n, first in enumerate(names):
        for second in names[n + 1 :]:
            assert not torch.allclose(results[first], results[second]), (first, second)
