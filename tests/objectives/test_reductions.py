"""Every *Reduces to* line of the folder, as an equality."""

import inspect
import re
from dataclasses import replace

import pytest
import torch

from offline_rlvr.objectives import load, names

CLOSE = {"rtol": 1e-9, "atol": 1e-13}
REDUCTIONS = {}


def reduction(objective: str, line: str):
    """Register the test of one docstring line."""

    def register(test):
        REDUCTIONS[objective, line] = test
        return test

    return register


def lines_of(name: str) -> set[str]:
    text = inspect.getdoc(type(load(name)))
    section = re.search(r"Reduces to:\n((?: {4}.*\n?)+)", text).group(1)
    joined = re.sub(r"\n {4}\(", " (", re.sub(r"\n {8}", " ", section))
    return {line.strip().rstrip(".") for line in joined.splitlines() if line.strip()}


@pytest.mark.parametrize("name", names())
def test_each_line_has_a_test(name):
    assert lines_of(name) == {line for owner, line in REDUCTIONS if owner == name}


@pytest.mark.parametrize("key", [(n, line) for n in names() for line in sorted(lines_of(n))])
def test_reduction(key, random_batch, evaluate):
    def gradient(name, batch, **params):
        return evaluate(load(name, **params), batch)[1]

    REDUCTIONS[key](random_batch, gradient)


def on_policy(batch):
    return replace(batch, behavior_logprobs=batch.policy_logprobs.detach())


def at_reference(batch):
    return replace(batch, ref_logprobs=batch.policy_logprobs.detach())


def one_mean(batch):
    rewards = torch.zeros_like(batch.rewards)
    rewards[:, 1] = 1.0
    return replace(batch, rewards=rewards)


@reduction("ggpo", "ggpo_reward_only where the policy is the reference (gradient)")
def ggpo_after_refresh(random_batch, gradient):
    batch = at_reference(random_batch())
    for beta in (0.01, 0.5):
        expected = gradient("ggpo_reward_only", batch, beta=beta)
        torch.testing.assert_close(gradient("ggpo", batch, beta=beta), expected, **CLOSE)
    apart = random_batch()
    reward_only = gradient("ggpo_reward_only", apart, beta=0.5)
    assert not torch.allclose(gradient("ggpo", apart, beta=0.5), reward_only)


@reduction("ggpo", "agro times sqrt(m-1) / (m beta) where R / beta hardly spreads (gradient)")
def ggpo_to_first_order(random_batch, gradient):
    batch, beta, size = random_batch(size=5, spread=1e-4), 1e4, 5
    expected = gradient("agro", batch, beta=beta) * (size - 1) ** 0.5 / (size * beta)
    torch.testing.assert_close(gradient("ggpo", batch, beta=beta), expected, rtol=2e-2, atol=0)


@reduction("ggpo_clipped", "ggpo where no token log-ratio exceeds `clip` (gradient)")
def clipped_inside(random_batch, gradient):
    batch = random_batch(spread=0.1)
    expected = gradient("ggpo", batch, beta=0.3)
    actual = gradient("ggpo_clipped", batch, beta=0.3, clip=0.25)
    torch.testing.assert_close(actual, expected, **CLOSE)
    assert not torch.allclose(gradient("ggpo_clipped", batch, beta=0.3, clip=0.05), expected)


@reduction("ggpo_clipped", "ggpo_reward_only at clip = 0")
def clipped_to_nothing(random_batch, gradient):
    batch = random_batch()
    expected = gradient("ggpo_reward_only", batch, beta=0.3)
    actual = gradient("ggpo_clipped", batch, beta=0.3, clip=0.0)
    torch.testing.assert_close(actual, expected, **CLOSE)


@reduction("ggpo_reward_only", "maxrl / sqrt(m-1) as beta -> 0")
def reward_only_small_beta(random_batch, gradient):
    batch, size = random_batch(size=6), 6
    expected = gradient("maxrl", batch) / (size - 1) ** 0.5
    torch.testing.assert_close(gradient("ggpo_reward_only", batch, beta=0.01), expected, **CLOSE)
    assert not torch.allclose(gradient("ggpo_reward_only", batch, beta=1.0), expected)


@reduction(
    "maxrl", "pg / mean(r) where the policy is the behavior and groups share one mean reward"
)
def maxrl_of_one_mean(random_batch, gradient):
    batch = one_mean(on_policy(random_batch()))
    torch.testing.assert_close(gradient("maxrl", batch), gradient("pg", batch) * 4, **CLOSE)


@reduction("agro", "pg times m / (m-1) at beta = 0 where the policy is the behavior")
def agro_without_reference(random_batch, gradient):
    batch = on_policy(random_batch())
    expected = gradient("pg", batch) * 4 / 3
    torch.testing.assert_close(gradient("agro", batch, beta=0.0), expected, **CLOSE)


@reduction(
    "grpo",
    "proximal_kl(beta=0, advantage=standardized) at kl_coef = 0 where the policy is the behavior "
    "(gradient)",
)
def grpo_on_policy(random_batch, gradient):
    batch = on_policy(random_batch())
    expected = gradient("proximal_kl", batch, beta=0.0, advantage="standardized")
    torch.testing.assert_close(gradient("grpo", batch, kl_coef=0.0), expected, **CLOSE)


@reduction("grpo_tis", "grpo where the old policy is the behavior and tis_cap >= 1")
def tis_of_fresh_data(random_batch, gradient):
    batch = random_batch()
    fresh = replace(batch, old_logprobs=batch.behavior_logprobs)
    torch.testing.assert_close(gradient("grpo_tis", fresh), gradient("grpo", fresh), **CLOSE)


@reduction("proximal_kl", "pg at beta = 0")
def proximal_without_cost(random_batch, gradient):
    batch = random_batch(spread=1.0)
    torch.testing.assert_close(
        gradient("proximal_kl", batch, beta=0.0), gradient("pg", batch), **CLOSE
    )


@reduction("cispo", "pg where every ratio lies inside the clip")
def cispo_inside(random_batch, gradient):
    batch = random_batch(spread=0.1)
    for params in ({"clip_high": 0.28}, {"clip_high": 0.28, "clip_low": 0.28}):
        torch.testing.assert_close(
            gradient("cispo", batch, **params), gradient("pg", batch), **CLOSE
        )


@reduction("pg", "REINFORCE with the group mean as baseline where the policy is the behavior")
def pg_on_policy(random_batch, gradient):
    batch = on_policy(random_batch())
    r, mask = batch.rewards, batch.response_mask
    expected = -((r - r.mean(-1, keepdim=True))[..., None] * mask) / mask.sum()
    torch.testing.assert_close(gradient("pg", batch), expected, **CLOSE)


@reduction("topr", "REINFORCE with rewards R where the policy is the behavior")
def topr_on_policy(random_batch, gradient):
    batch = on_policy(random_batch())
    mask = batch.response_mask
    expected = -((2 * batch.rewards - 1 - 0.3)[..., None] * mask) / mask.sum()
    torch.testing.assert_close(gradient("topr", batch, baseline=0.3), expected, **CLOSE)
