"""One row per response, for anyone who studies drift with SQL (`responses/*.parquet` of a run)."""

import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch
from offline_rlvr.diagnostics import gibbs
from offline_rlvr.numerics.masked import token_mean, token_sum


@torch.no_grad()
def response_record(
    batch: TokenBatch,
    coefficients: Float[Tensor, "G K"] | Float[Tensor, "G K T"] | None = None,
    beta: float | None = None,
) -> dict[str, Float[Tensor, "G K"]]:
    """Per-response numbers of a micro-batch, float64.

    Args:
        batch: The scored batch.
        coefficients: The objective's; per-token ones are averaged over the response's tokens.
        beta: Temperature of q, in units of reward.

    Returns:
        `reward`; `s`, `s_ref`, `s_behavior`: log-prob of the whole response under policy, active
        reference and behavior, nats; `q`: its Gibbs weight in its group; `coefficient`. What cannot
        be known (no reference, no beta, no coefficients) is absent.
    """
    mask = batch.response_mask
    record = {
        "reward": batch.rewards.double(),
        "s": token_sum(batch.policy_logprobs.detach(), mask),
        "s_behavior": token_sum(batch.behavior_logprobs, mask),
    }
    if batch.ref_logprobs is not None:
        record["s_ref"] = token_sum(batch.ref_logprobs, mask)
        if beta is not None:
            record["q"] = gibbs.weights(batch, beta)
    if coefficients is not None:
        c = coefficients.detach()
        record["coefficient"] = token_mean(c, mask) if c.ndim == 3 else c.double()
    return record
