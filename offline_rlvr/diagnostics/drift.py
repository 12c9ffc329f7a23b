"""How far a policy has moved: per-token divergences and response weights, as sums that add up."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch
from offline_rlvr.diagnostics.bins import PARTS, POSITION_KEYS, PROBABILITIES, PROBABILITY_KEYS
from offline_rlvr.numerics import divergence
from offline_rlvr.numerics.logspace import LogWeights
from offline_rlvr.numerics.masked import SumCount, share, sum_count, without_padding

#: Rewards from here on are "right" (0/1 and -1/+1 rewards, and graded ones in [0, 1]).
RIGHT_FROM = 0.5

#: Token log-ratios beyond it are counted in `drift/fraction_above_0.1`.
NOTABLE_LOG_RATIO = 0.1


def right(batch: TokenBatch) -> Bool[Tensor, "G K"]:
    """Which responses count as right."""
    return batch.rewards >= RIGHT_FROM


def parts(batch: TokenBatch) -> dict[str, Bool[Tensor, "G K"]]:
    """The responses behind a key without suffix, and behind its two splits."""
    is_right = right(batch)
    return {"": torch.ones_like(is_right), "/right": is_right, "/wrong": ~is_right}


def log_ratio(batch: TokenBatch, other: Float[Tensor, "G K T"]) -> Float[Tensor, "G K T"]:
    """Policy minus `other`, float64, 0 in the padding, detached."""
    mask = batch.response_mask
    return without_padding(batch.policy_logprobs.detach(), mask) - without_padding(other, mask)


def token_values(
    values: Float[Tensor, "G K T"], mask: Bool[Tensor, "G K T"]
) -> dict[str, tuple[Float[Tensor, "G K T"], Bool[Tensor, "G K T"]]]:
    """What each `drift/*` metric of a log-ratio to the behavior is the mean of, and over which of
    the tokens under the mask."""
    beyond = divergence.k3_saturated(values)
    return {
        "drift/abs_log_ratio": (values.abs(), mask),
        "drift/k3_behavior_policy": (divergence.k3(values), mask & ~beyond),
        "drift/k1_behavior_policy": (divergence.k1(values), mask),
        "drift/fraction_above_0.1": ((values.abs() > NOTABLE_LOG_RATIO).double(), mask),
        "drift/fraction_saturated": (beyond.double(), mask),
    }


def token_metrics(
    values: Float[Tensor, "G K T"], mask: Bool[Tensor, "G K T"]
) -> dict[str, SumCount]:
    """The `drift/*` sums of a log-ratio to the behavior over the tokens under the mask."""
    return {key: sum_count(*each) for key, each in token_values(values, mask).items()}


def binned_metrics(batch: TokenBatch, values: Float[Tensor, "G K T"]) -> dict[str, SumCount]:
    """The drift of each part of the responses, and of each class of behavior probability."""
    mask = batch.response_mask
    before = mask.cumsum(-1) - 1
    part = PARTS * before // mask.sum(-1, keepdim=True).clamp(min=1)
    chance = without_padding(batch.behavior_logprobs, mask).exp().contiguous()
    inner = torch.tensor(PROBABILITIES[1:-1], dtype=chance.dtype, device=chance.device)
    which = torch.bucketize(chance, inner)  # right ends included
    size = values.abs()
    sides = ((POSITION_KEYS, part), (PROBABILITY_KEYS, which))
    return {
        key: sum_count(size, mask & (bins == i))
        for keys, bins in sides
        for i, key in enumerate(keys)
    }


def reference_metrics(
    values: Float[Tensor, "G K T"], mask: Bool[Tensor, "G K T"]
) -> dict[str, SumCount]:
    """The `reference/*` sums of a log-ratio to the active reference."""
    beyond = divergence.k3_saturated(values)
    return {
        "reference/k3": sum_count(divergence.k3(values), mask & ~beyond),
        "reference/fraction_saturated": share(beyond, mask),
        "reference/log_ratio_nats": sum_count(values.sum(-1), mask.any(-1)),
    }


def response_weights(values: Float[Tensor, "G K T"], among: Bool[Tensor, "G K"]) -> LogWeights:
    """The sequence weights `exp(sum_t lambda)` of the chosen responses, on the log scale."""
    return LogWeights.of(values.sum(-1), among)
