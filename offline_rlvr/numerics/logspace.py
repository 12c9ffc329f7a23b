"""Weights that live on a log scale: log-mean-exp, softmax, effective sample size. All float64."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def log_mean_exp(values: Float[Tensor, "*shape K"]) -> Float[Tensor, "*shape"]:
    """`log((1/K) sum_i exp(v_i))`; differentiable, its gradient is the softmax."""
    return values.double().logsumexp(-1) - math.log(values.shape[-1])


def log_mean_exp_gap(values: Float[Tensor, "*shape K"]) -> Float[Tensor, "*shape"]:
    """`log_mean_exp(v) - mean(v)`: >= 0 and zero iff all values agree (Jensen).

    The first value is taken off on both sides, so that values of size 1e5 with a spread of 1 keep
    their digits.
    """
    shifted = values.double() - values[..., :1].double()
    return log_mean_exp(shifted) - shifted.mean(-1)


def softmax_weights(
    logits: Float[Tensor, "*shape K"], among: Bool[Tensor, "*shape K"] | None = None
) -> Float[Tensor, "*shape K"]:
    """`q_i = exp(v_i) / sum_j exp(v_j)`, the sum over `among` if given (weights outside it are 0;
    NaN if it is empty)."""
    logits = logits.double()
    if among is not None:
        logits = logits.masked_fill(~among, -torch.inf)
    return logits.softmax(-1)


@dataclass(frozen=True)
class LogWeights:
    """What is needed of n weights to know their effective sample size; two of them add up to that
    of all.

    Attributes:
        log_sum: `log sum w`.
        log_sum_sq: `log sum w^2`.
        count: n.
    """

    log_sum: Float[Tensor, ""]
    log_sum_sq: Float[Tensor, ""]
    count: Float[Tensor, ""]

    @staticmethod
    def of(
        log_weights: Float[Tensor, "*shape"], among: Bool[Tensor, "*shape"] | None = None
    ) -> "LogWeights":
        """From the log-weights (nats), only those in `among` if given; no weight is ever formed."""
        w = log_weights.detach().double()
        chosen = torch.ones_like(w, dtype=torch.bool) if among is None else among
        w = w.masked_fill(~chosen, -torch.inf).flatten()
        return LogWeights(w.logsumexp(0), (2 * w).logsumexp(0), chosen.sum().double())

    def __add__(self, other: "LogWeights") -> "LogWeights":
        return LogWeights(
            torch.logaddexp(self.log_sum, other.log_sum),
            torch.logaddexp(self.log_sum_sq, other.log_sum_sq),
            self.count + other.count,
        )

    @property
    def ess(self) -> float:
        """`(sum w)^2 / (n sum w^2)` in [1/n, 1]; NaN when there is no weight."""
        if self.count == 0:
            return float("nan")
        return float((2 * self.log_sum - self.log_sum_sq).exp() / self.count)
