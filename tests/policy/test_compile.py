"""Compiled layers: the same numbers, one graph for all lengths, and generation left as it was."""

import pytest
import torch
from torch._dynamo.utils import counters

from offline_rlvr.policy import Policy, eager
from offline_rlvr.policy.load import fresh_lora

#: torch.compile warns of its own ways, which nobody here could mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def compiled(make_model):
    """A policy with compiled layers, and a plain one with the same weights."""

    def make(kind="qwen3", lora=False):
        torch._dynamo.reset()
        policies = []
        for _ in range(2):
            model = make_model(kind)
            policies.append(Policy(fresh_lora(model, {"rank": 2}, "base") if lora else model))
        for parameter, other in zip(*(p.parameters() for p in policies), strict=True):
            if parameter.requires_grad and lora:  # a fresh adapter adds nothing
                with torch.no_grad():
                    parameter += 0.1
                    other += 0.1
        policies[0].compile_layers()
        return policies

    yield make
    torch._dynamo.reset()


def gradient(policy, batch):
    policy.zero_grad()
    scores = policy.score(batch).logprobs
    scores.square().sum().backward()
    found = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return scores.detach(), torch.cat(found)


@pytest.mark.parametrize(("kind", "lora"), [("qwen3", True), ("gemma3", False), ("smollm", False)])
def test_the_numbers_are_those_of_the_plain_model(compiled, make_batch, kind, lora):
    policy, plain = compiled(kind, lora)
    batch = make_batch()
    (scores, grad), (expected, expected_grad) = gradient(policy, batch), gradient(plain, batch)
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(grad, expected_grad, atol=1e-3, rtol=1e-3)
    assert (scores != 0).any()
    assert grad.norm() > 0


@pytest.mark.parametrize("checkpointing", [False, True])
def test_scoring_without_gradient_gives_the_same_bits(compiled, make_batch, checkpointing):
    """An anchor is scored without gradient: right after a refresh, drift to it is exactly 0."""
    policy, _ = compiled()
    policy.checkpoint_activations(checkpointing)
    for seed in range(3):
        batch = make_batch(seed=seed)
        scores, _ = gradient(policy, batch)
        with torch.no_grad():
            assert torch.equal(policy.score(batch).logprobs, scores)


def test_lengths_and_layers_share_graphs(compiled, make_batch):
    policy, _ = compiled()
    gradient(policy, make_batch())
    with torch.no_grad():
        policy.score(make_batch())
    before = counters["stats"]["unique_graphs"]
    for seed in range(1, 6):
        batch = make_batch(g=1 + seed, t=5 + 3 * seed, seed=seed)
        gradient(policy, batch)
        with torch.no_grad():
            policy.score(batch)
    assert counters["stats"]["unique_graphs"] == before


def test_checkpoints_give_the_same_gradient(compiled, make_batch):
    policy, _ = compiled()
    batch = make_batch()
    _, expected = gradient(policy, batch)
    policy.checkpoint_activations(True)
    _, found = gradient(policy, batch)
    assert torch.equal(found, expected)


def test_generation_is_left_as_it_was(compiled, make_batch):
    policy, plain = compiled()
    prompt = make_batch().prompt_token_ids[:1, :3]
    before = counters["stats"]["unique_graphs"]
    with eager():
        words = policy.causal_lm.generate(prompt, do_sample=False, max_new_tokens=8)
    assert torch.equal(words, plain.causal_lm.generate(prompt, do_sample=False, max_new_tokens=8))
    assert counters["stats"]["unique_graphs"] == before
