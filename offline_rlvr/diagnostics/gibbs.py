"""Distance to the Gibbs target of the active reference, the same numbers for any objective."""

from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch
from offline_rlvr.diagnostics.drift import log_ratio, right
from offline_rlvr.numerics.logspace import log_mean_exp_gap, softmax_weights
from offline_rlvr.numerics.masked import SumCount, share, sum_count, total


def adjusted(batch: TokenBatch, beta: float) -> Float[Tensor, "G K"]:
    """`r / beta - Delta`, Delta = log policy minus log active reference of the whole response."""
    batch.require("reference")
    assert batch.ref_logprobs is not None  # `require` has just made sure
    return batch.rewards.double() / beta - log_ratio(batch, batch.ref_logprobs).sum(-1)


def weights(batch: TokenBatch, beta: float) -> Float[Tensor, "G K"]:
    """`q = softmax(r / beta - Delta)` within each group."""
    return softmax_weights(adjusted(batch, beta))


def effective_size(batch: TokenBatch, beta: float) -> Float[Tensor, " G"]:
    """`1 / sum q^2` per group, in [1, m]."""
    return 1 / weights(batch, beta).square().sum(-1)


def group_metrics(batch: TokenBatch, beta: float) -> dict[str, SumCount]:
    """The `gibbs/*` sums over groups (`negative_correct_fraction`: over right responses)."""
    values = adjusted(batch, beta)
    q = softmax_weights(values)
    size = q.shape[-1]
    chosen = right(batch)
    count = chosen.sum(-1)
    # Groups with fewer than two right responses are left out of the mean; every row needs some
    # weight for the softmax, so those take all responses.
    several = count >= 2
    within = softmax_weights(values, chosen | ~several[:, None])
    success = 1 / (count.clamp(min=1) * within.square().sum(-1))
    return {
        "gibbs/ess_q": total(1 / q.square().sum(-1)),
        "gibbs/ess_success": sum_count(success, several),
        "gibbs/loss": total(beta * log_mean_exp_gap(values)),
        "gibbs/negative_correct_fraction": share(size * q < 1, chosen),
    }
