"""Probability ratios from log-ratios, finite in value and gradient whatever the log-ratio is.

`exp` of a log-ratio of 200 nats is infinite in float32, and an infinity in a branch that is not
taken still makes the gradient NaN (0 * inf). So the log-ratio is bounded *before* `exp`, never the
ratio after it.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

#: Ratios in a loss saturate at e^30 = 1e13: far beyond any ratio that carries information about one
#: token, and small enough that squared gradients of 1e26 still sum to a finite norm in float32
#: (largest value 3e38).
MAX_LOG_RATIO = 30.0


def ratio(log_ratio: Float[Tensor, "*shape"], cap: float | None = None) -> Float[Tensor, "*shape"]:
    """`exp(log_ratio)`, not above `cap` (> 0); without one, not above `e^MAX_LOG_RATIO`."""
    limit = MAX_LOG_RATIO if cap is None else min(math.log(cap), MAX_LOG_RATIO)
    return log_ratio.clamp(max=limit).exp()


def saturated(log_ratio: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Where `ratio` without a cap of the caller's own differs from `exp`."""
    return log_ratio > MAX_LOG_RATIO


def k3_penalty(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`exp(l) - l - 1` for use in a loss: beyond `MAX_LOG_RATIO` its tangent goes on, so the
    gradient stays finite.

    A plain clamp would leave only `-l` there and push the policy the wrong way.
    """
    bounded = log_ratio.clamp(max=MAX_LOG_RATIO)
    slope = math.expm1(MAX_LOG_RATIO)
    tangent = slope * (log_ratio - MAX_LOG_RATIO) + slope - MAX_LOG_RATIO
    return torch.where(saturated(log_ratio), tangent, bounded.expm1() - bounded)


def k3_penalty_slope(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Derivative of `k3_penalty`: `exp(l) - 1`, constant beyond `MAX_LOG_RATIO`."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).expm1()


class ClippedSurrogate(NamedTuple):
    """Per-token PPO loss and where its gradient is alive.

    Attributes:
        loss: [G, K, T] to be minimized.
        alive: [G, K, T] True where neither clip holds, so that the gradient is `-A * ratio`.
    """

    loss: Float[Tensor, "G K T"]
    alive: Bool[Tensor, "G K T"]


def clipped_surrogate(
    log_ratio: Float[Tensor, "G K T"],
    advantages: Float[Tensor, "G K"],
    low: float,
    high: float,
    dual: float,
) -> ClippedSurrogate:
    """`max(-A rho, -A clip(rho, low, high))`, for A < 0 not above `-A * dual`.

    Args:
        log_ratio: Log of rho, nats; carries the gradient.
        advantages: Detached.
        low: Lower bound of the ratio, in [0, 1].
        high: Upper bound of the ratio, >= 1.
        dual: Bound of the ratio for negative advantages, > high, far below `e^MAX_LOG_RATIO`.
    """
    a = advantages[..., None]
    rho = ratio(log_ratio)
    # At A = 0 both branches are 0 and either is right; `>=` then needs no special case.
    inside = -a * rho >= -a * rho.clamp(low, high)
    within_dual = (a >= 0) | (rho <= dual)
    loss = torch.maximum(-a * rho, -a * rho.clamp(low, high))
    loss = torch.where(a < 0, torch.minimum(loss, -a * dual), loss)
    return ClippedSurrogate(loss, inside & within_dual)
