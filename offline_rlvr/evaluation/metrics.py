"""mean@k and unbiased pass@k per problem.

Rewards are [P, n]: P problems, n responses each, nan where the verifier could not score the
response. An unscored response is left out of both the count of responses and the count of right
ones; it is never a wrong answer.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_rlvr.errors import ConfigError

Floats = NDArray[np.float64]

#: A response is right for pass@k when its reward reaches this; partial rewards count in mean@k.
FULL_REWARD = 1.0


def mean_at_k(rewards: ArrayLike) -> Floats:
    """Mean reward of each problem's scored responses.

    Args:
        rewards: [P, n] rewards, nan where unscored.

    Returns:
        [P]; nan for a problem without any scored response.
    """
    values = _table(rewards)
    scored = ~np.isnan(values)
    counts = scored.sum(1)
    sums = np.where(scored, values, 0.0).sum(1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
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
        return -np.expm1(np.log1p(-share).sum(-1))


def pass_at_k_of(rewards: ArrayLike, k: int) -> Floats:
    """pass@k of each problem, with n and c counted over its scored responses.

    Args:
        rewards: [P, n] rewards, nan where unscored.
        k: Draws, 1..n.

    Returns:
        [P]; nan for a problem with fewer than k scored responses, where pass@k is not defined.

    Raises:
        ConfigError: k < 1 or k > n.
    """
    values = _table(rewards)
    if not 1 <= k <= values.shape[1]:
        pass_at_k(values.shape[1], 0, k)  # raises, with the reason
    scored = (~np.isnan(values)).sum(1)
    right = (values >= FULL_REWARD).sum(1)
    enough = scored >= k
    result = np.full(len(values), np.nan)
    result[enough] = pass_at_k(scored[enough], right[enough], k)
    return result


def powers_of_two(n: int) -> list[int]:
    """The k at which pass@k is reported: 1, 2, 4, ... and n itself."""
    ks = [1 << i for i in range(n.bit_length()) if 1 << i <= n]
    return ks if ks[-1] == n else [*ks, n]


def _table(rewards: ArrayLike) -> Floats:
    values = np.asarray(rewards, np.float64)
    if values.ndim != 2 or values.shape[1] < 1:
        raise ConfigError(f"rewards have shape {values.shape}; expected [problems, n] with n >= 1")
    return values
