"""What a difference between stored and re-scored log-probs looks like, in words."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from offline_rlvr.batch import PoolBatch
from offline_rlvr.policy import Policy

#: Groups that are scored again and again to find the reason.
GROUPS = 8
TEMPERATURES = [round(0.1 * step, 1) for step in range(1, 21)]
#: Differences below it are kernel and dtype noise, nats.
NOISE = 0.05
#: Share of clearly different tokens that renormalization makes more likely: all of them.
ONE_SIDED = 0.99


@torch.no_grad()
def explain(policy: Policy, batch: PoolBatch, allowed: float) -> str:
    """The likeliest reason why the untouched policy does not reproduce the stored log-probs.

    Args:
        policy: As loaded, with the pool's recorded temperature.
        batch: Groups of the pool, on any device.
        allowed: Mean |difference| in nats per token that counts as a fit.

    Returns:
        A sentence without a full stop.
    """
    batch = batch.select(list(range(min(GROUPS, len(batch.group_ids))))).to(policy.device)
    mask, recorded = batch.response_mask, policy.temperature
    stored = batch.behavior_logprobs.double()

    def distance(scored: Tensor) -> float:
        return float((stored - scored)[mask].abs().mean())

    scores = policy.score(batch).logprobs.double()
    shifted = _shifted_by_one(stored, scores, batch.response_lengths)
    if shifted <= allowed:
        return "the stored log-probs fit when moved by one token: they are off by one"
    fits = {}
    for temperature in TEMPERATURES:
        with _temperature(policy, temperature):
            fits[temperature] = distance(policy.score(batch).logprobs.double())
    best = min(fits, key=fits.__getitem__)
    if fits[best] <= allowed and best == 1 != recorded:
        return (
            "the stored log-probs are those at temperature 1: raw ones, taken before the "
            f"temperature of {recorded:g} was applied (vLLM: logprobs_mode=processed_logprobs)"
        )
    if fits[best] <= allowed and best != recorded:
        return f"the stored log-probs fit a temperature of {best:g}; recorded is {recorded:g}"
    difference = (stored - scores)[mask]
    clear = difference[difference.abs() > NOISE]
    if len(clear) and float((clear > 0).double().mean()) >= ONE_SIDED:
        return (
            "the stored log-probs are never below those of the whole distribution: sampled with "
            "top-p, top-k or min-p, and renormalized"
        )
    return "no temperature and no truncation explains it: another model, or another prompt"


@contextmanager
def _temperature(policy: Policy, value: float) -> Iterator[None]:
    found, policy.temperature = policy.temperature, value
    try:
        yield
    finally:
        policy.temperature = found


def _shifted_by_one(stored: Tensor, scores: Tensor, lengths: Tensor) -> float:
    """The smaller mean |difference| when one side is moved by one token, to the left or right."""
    inner = torch.arange(stored.shape[-1] - 1, device=stored.device) < lengths[..., None] - 1
    if not inner.any():
        return float("inf")
    ways = (stored[..., 1:] - scores[..., :-1], stored[..., :-1] - scores[..., 1:])
    return min(float(way[inner].abs().mean()) for way in ways)
