"""Sums over the tokens that count, and the (sum, count) pairs they are reduced with.

Every function here removes padding before any arithmetic, so junk under the mask (NaN and infinity
too) reaches neither a value nor a gradient.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class SumCount:
    """A mean that can still be added to: over micro-batches, updates and ranks, without a mean of
    means.

    `a + b` pools the two; `mean` divides at the very end. Reducing over ranks is a sum of both
    numbers.

    Attributes:
        sum: Float64 scalar.
        count: Float64 scalar; how many tokens, responses or groups the sum runs over.
    """

    sum: Float[Tensor, ""]
    count: Float[Tensor, ""]

    def __add__(self, other: "SumCount") -> "SumCount":
        return SumCount(self.sum + other.sum, self.count + other.count)

    @property
    def mean(self) -> float:
        """The pooled mean; NaN when nothing was counted."""
        return float("nan") if self.count == 0 else float(self.sum / self.count)


def without_padding(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """The values in float64, exactly 0 (with zero gradient) where the mask is False."""
    return values.masked_fill(~mask, 0.0).double()


def token_sum(
    values: Float[Tensor, "*shape T"], mask: Bool[Tensor, "*shape T"]
) -> Float[Tensor, "*shape"]:
    """Sum over the response tokens, float64: `s_i = sum_t M_it v_it`."""
    return without_padding(values, mask).sum(-1)


def token_mean(
    values: Float[Tensor, "*shape T"], mask: Bool[Tensor, "*shape T"]
) -> Float[Tensor, "*shape"]:
    """Mean over the response tokens of each response, float64; a response has at least one
    token."""
    return token_sum(values, mask) / mask.sum(-1)


def sum_count(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> SumCount:
    """What the values add up to where the mask is True, and over how many; detached, float64."""
    return SumCount(without_padding(values.detach(), mask).sum(), mask.sum().double())


def share(hits: Bool[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> SumCount:
    """How many of the entries under the mask are hits, as a (sum, count) pair."""
    return sum_count(hits.double(), mask)


def total(values: Float[Tensor, "*shape"]) -> SumCount:
    """The (sum, count) pair of all entries."""
    return sum_count(values, torch.ones_like(values, dtype=torch.bool))
