"""Statistics of a group: of its m rewards, all float64 and exactly 0 when they agree; of tokens."""

from jaxtyping import Bool, Float
from torch import Tensor

from offline_rlvr.numerics.masked import without_padding


def centered(values: Float[Tensor, "G K"]) -> Float[Tensor, "G K"]:
    """`v_i - mean(v)`. Exactly 0 where all agree.

    The first entry is taken off before the mean: a mean of m equal floats need not equal them
    (three times 0.1), and a later division by a standard deviation near 0 would turn that rounding
    into a signal.
    """
    shifted = values.double() - values[:, :1].double()
    return shifted - shifted.mean(-1, keepdim=True)


def group_mean(values: Float[Tensor, "G K"]) -> Float[Tensor, "G 1"]:
    """Mean over the group, kept as a column."""
    return values.double().mean(-1, keepdim=True)


def sample_std(values: Float[Tensor, "G K"]) -> Float[Tensor, "G 1"]:
    """Standard deviation with m - 1 in the denominator, kept as a column; needs m >= 2."""
    return (centered(values).square().sum(-1, keepdim=True) / (values.shape[-1] - 1)).sqrt()


def standardized(values: Float[Tensor, "G K"], epsilon: float) -> Float[Tensor, "G K"]:
    """`(v_i - mean) / (std + epsilon)`, std with m - 1. Exactly 0 where all agree."""
    return centered(values) / (sample_std(values) + epsilon)


def leave_one_out(values: Float[Tensor, "G K"]) -> Float[Tensor, "G K"]:
    """`v_i` minus the mean of the *other* m - 1, which is `m / (m - 1)` times the centered
    value."""
    size = values.shape[-1]
    return centered(values) * (size / (size - 1))


def token_variance(
    values: Float[Tensor, "G K T"], mask: Bool[Tensor, "G K T"]
) -> Float[Tensor, " G"]:
    """Variance of a token's value over all tokens of a group under the mask, float64, >= 0."""
    values, counted = without_padding(values, mask), mask.sum((1, 2))
    means = values.sum((1, 2)) / counted
    squares = without_padding((values - means[:, None, None]).square(), mask)
    return squares.sum((1, 2)) / counted
