"""The draw of a token from its row's own random stream, with the log-prob it was drawn with."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from offline_rlvr.generation.sampling import Sampling


class SeededDraw(LogitsProcessor):
    """Draws each row's token from its own random stream and makes `generate` take it.

    One uniform number per token is turned into a token by the inverse of the cumulative
    distribution. Drawing one number instead of one per vocabulary entry keeps the cost independent
    of the vocabulary, and equal seeds give equal tokens on every device.

    Attributes:
        logprobs: One [B] float32 tensor per step: log-prob of the drawn token under the
            distribution it was drawn from, in nats.
    """

    def __init__(self, sampling: Sampling, seeds: Sequence[int]):
        self.logprobs: list[Float[Tensor, " B"]] = []
        # NumPy's Philox takes all bits of a seed; torch's CPU generator keeps only the low 32.
        uniforms = [
            np.random.Generator(np.random.Philox(seed)).random(sampling.max_new_tokens)
            for seed in seeds
        ]
        self._uniforms: Float[Tensor, "B T"] = torch.from_numpy(np.stack(uniforms))
        self._warp: Any = LogitsProcessorList()
        if sampling.temperature != 1:
            self._warp.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k:
            self._warp.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            self._warp.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            self._warp.append(MinPLogitsWarper(sampling.min_p))

    def __call__(
        self, input_ids: Int[Tensor, "B P"], scores: Float[Tensor, "B V"]
    ) -> Float[Tensor, "B V"]:
        """Record the draw; return scores whose maximum is the drawn token."""
        logprobs = self._warp(input_ids, scores.float()).log_softmax(-1)
        uniform = self._uniforms[:, len(self.logprobs)].to(scores.device)
        token = inverse_cdf(logprobs, uniform)
        self.logprobs.append(logprobs.gather(-1, token[:, None])[:, 0])
        return torch.full_like(scores, -math.inf).scatter_(-1, token[:, None], 0.0)


def inverse_cdf(logprobs: Float[Tensor, "B V"], uniform: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The token at quantile `uniform` (in [0, 1)) of each row; never one of probability zero."""
    # float64: a float32 running sum over 150,000 tokens would shift probabilities by more than rare
    # tokens have.
    cdf = logprobs.exp().double().cumsum_(-1)
    total = cdf[:, -1]
    # Just below the total, so that rounding cannot point past the last possible token.
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    token = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
    # NaN logits point past the end; the NaN log-prob stored for them is refused by the caller.
    return token.clamp_(max=logprobs.shape[-1] - 1)
