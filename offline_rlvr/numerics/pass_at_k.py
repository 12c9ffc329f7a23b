"""pass@k from counts: how many of n responses were right."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offline_rlvr.errors import ConfigError

Counts = int | Sequence[int] | np.ndarray


def pass_at_k(n: Counts, c: Counts, k: int) -> NDArray[np.float64]:
    """Chance that one of k responses, drawn without replacement from n with c right, is right.

    pass@k = 1 - C(n-c, k) / C(n, k) = 1 - prod_{j<k} (1 - c / (n - j)), summed as logarithms: no
    large binomials, and no cancellation when c is small.

    Args:
        n: Responses per problem, any shape, >= k.
        c: Right responses, same shape, 0 <= c <= n.
        k: Draws, >= 1.

    Returns:
        Values in [0, 1], of the broadcast shape of n and c. Unbiased for 1 - (1 - p)^k.

    Raises:
        ConfigError: k < 1, k > n or c outside 0..n.

    Reference: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.
    """
    n_, c_ = np.broadcast_arrays(np.asarray(n, np.int64), np.asarray(c, np.int64))
    if k < 1:
        raise ConfigError(f"pass@{k} is not defined; k is 1 or more")
    if n_.size and k > n_.min():
        raise ConfigError(
            f"pass@{k} needs at least {k} responses per problem; found {n_.min()}",
            hint=f"raise evaluation.k to {k} or ask for a smaller k",
        )
    if (bad := (c_ < 0) | (c_ > n_)).any():
        raise ConfigError(
            f"{c_[bad][0]} right responses of {n_[bad][0]} is impossible; 0..n are allowed"
        )
    remaining = n_[..., None] - np.arange(k)
    share = np.minimum(c_[..., None] / remaining, 1.0)
    with np.errstate(divide="ignore"):  # share 1: log 0 = -inf, and 1 - exp(-inf) = 1 exactly
        return np.asarray(-np.expm1(np.log1p(-share).sum(-1)))


def powers_of_two(n: int) -> list[int]:
    """The k at which pass@k is reported: 1, 2, 4, ... and n itself."""
    ks = [1 << i for i in range(n.bit_length()) if 1 << i <= n]
    return ks if ks[-1] == n else [*ks, n]
