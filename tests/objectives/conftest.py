"""Random batches for the objectives' tests: ragged responses, four different policies."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives.interface import Objective, Output


def _random_batch(
    seed: int = 0,
    groups: int = 3,
    size: int = 4,
    tokens: int = 5,
    spread: float = 0.4,
    dtype: torch.dtype = torch.float64,
) -> TokenBatch:
    """Mixed groups; the four log-probs differ by about `spread` nats per token."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    shape = (groups, size, tokens)
    base = -3 * draw(*shape) - spread
    policy, behavior, reference, old = (
        (base + spread * (2 * draw(*shape) - 1)).clamp(max=0).to(dtype) for _ in range(4)
    )
    lengths = torch.randint(1, tokens + 1, (groups, size), generator=generator)
    rewards = (draw(groups, size) < 0.5).to(dtype)
    rewards[:, 0], rewards[:, 1] = 1.0, 0.0
    mask = torch.arange(tokens) < lengths[..., None]
    return TokenBatch(
        policy.requires_grad_(), behavior, rewards, mask, ref_logprobs=reference, old_logprobs=old
    )


@pytest.fixture
def random_batch() -> Callable[..., TokenBatch]:
    return _random_batch


@pytest.fixture
def totals_of() -> Callable[[TokenBatch], Totals]:
    return lambda batch: Totals(len(batch.rewards), int(batch.response_mask.sum()))


@pytest.fixture
def evaluate(totals_of) -> Callable[..., tuple[Output, torch.Tensor]]:
    """Output and gradient with respect to `policy_logprobs`."""

    def run(objective: Objective, batch: TokenBatch, totals: Totals | None = None):
        leaf = batch.policy_logprobs.detach().clone().requires_grad_()
        fresh = replace(batch, policy_logprobs=leaf)
        out = objective(fresh, totals or totals_of(batch))
        out.loss.backward()
        return out, leaf.grad

    return run
