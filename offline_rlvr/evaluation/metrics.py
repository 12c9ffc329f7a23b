"""mean@k and unbiased pass@k per problem.

Rewards are [P, n]: P problems, n responses each, nan where the verifier could not score the
response. An unscored response is left out of both the count of responses and the count of right
ones; it is never a wrong answer.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_rlvr.errors import ConfigError
from offline_rlvr.numerics.pass_at_k import pass_at_k

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


def _table(rewards: ArrayLike) -> Floats:
    values = np.asarray(rewards, np.float64)
    if values.ndim != 2 or values.shape[1] < 1:
        raise ConfigError(f"rewards have shape {values.shape}; expected [problems, n] with n >= 1")
    return values
