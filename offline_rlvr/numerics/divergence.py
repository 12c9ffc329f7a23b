"""Per-token estimates of a KL divergence from a log-ratio, for *measuring* (see `ratios.k3_penalty`
for a loss).

With `l = log p - log q` of a token drawn from q: `k1 = -l` is unbiased for KL(q || p); `k3 = exp(l)
- l - 1` has the same mean, is never negative and varies less (J. Schulman, "Approximating KL
  Divergence", 2020).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

#: exp(600) = 4e260: finite in float64, and so is a sum of 1e47 of them. Beyond it a token is
#: counted, not summed.
K3_LIMIT = 600.0

#: Below it `expm1(l) - l` loses digits and four terms of the series are exact to 1e-16.
_SERIES_BELOW = 1e-3


def k1(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`-l`, float64."""
    return -log_ratio.double()


def k3(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`exp(l) - l - 1`, float64, to full relative accuracy; infinite only where `k3_saturated`.

    `k3(0) = 0` exactly; `k3(100) = 2.688e43`, where float32 overflows.
    """
    x = log_ratio.double()
    series = x * x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x / 120)))
    value = torch.where(x.abs() < _SERIES_BELOW, series, x.expm1() - x)
    return value.masked_fill(x > K3_LIMIT, torch.inf)


def k3_saturated(log_ratio: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Where k3 cannot be added up in float64: log-ratios above `K3_LIMIT` nats."""
    return log_ratio > K3_LIMIT
