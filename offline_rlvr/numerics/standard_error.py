"""How far an estimate from G groups may be off by chance, for *measuring*.

Groups are independent draws; the responses of a group share a problem and the tokens of a response
share a beginning, so only groups count. Both errors are of first order (the delta method): with
`u_g` the derivative of the estimate with respect to the weight of group g, and `sum_g u_g = 0`,

    se^2 = G / (G - 1) sum_g u_g^2
"""

from jaxtyping import Float
from torch import Tensor

from offline_rlvr.numerics.logspace import LogWeights


def of_ratio(sums: Float[Tensor, " G"], counts: Float[Tensor, " G"]) -> Float[Tensor, ""]:
    """Of the pooled mean `R = sum_g s_g / sum_g n_g`: `u_g = (s_g - R n_g) / sum n`.

    Args:
        sums: What the tokens of each group add up to, float64.
        counts: How many they are, float64, not all 0. G is at least 2.
    """
    count = counts.sum()
    return _of_derivatives((sums - sums.sum() / count * counts) / count)


def of_ess(log_weights: Float[Tensor, "G K"]) -> Float[Tensor, ""]:
    """Of `LogWeights.ess`: `u_g = ess (2 A_g / A - B_g / B - 1 / G)`, where `A_g` and `B_g` are the
    sums of w and w^2 in group g, A and B those over all groups.

    Too small where a few responses carry most of the weight: that an even heavier one was not drawn
    cannot be known from those that were.

    Args:
        log_weights: Nats. G is at least 2.
    """
    w = log_weights.double()
    first, second = (
        (power * w).flatten().softmax(0).view_as(w).sum(-1)  # share of each group
        for power in (1, 2)
    )
    return _of_derivatives(LogWeights.of(w).ess * (2 * first - second - 1 / len(w)))


def _of_derivatives(u: Float[Tensor, " G"]) -> Float[Tensor, ""]:
    size = len(u)
    return (size / (size - 1) * u.square().sum()).sqrt()
