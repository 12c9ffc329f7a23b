"""How far the metrics of a sample of groups may be off by chance."""

from collections.abc import Sequence

import torch

from offline_rlvr.batch import TokenBatch
from offline_rlvr.diagnostics.drift import log_ratio, token_values
from offline_rlvr.numerics import standard_error
from offline_rlvr.numerics.masked import token_sum


@torch.no_grad()
def standard_errors(batches: Sequence[TokenBatch]) -> dict[str, float]:
    """Standard error over groups of each `drift/*` token mean and of `weights/ess_update`.

    Empty for fewer than two groups.
    """
    sums, counts, log_weights = {}, {}, []
    for batch in batches:
        to_behavior = log_ratio(batch, batch.behavior_logprobs)
        for key, (values, among) in token_values(to_behavior, batch.response_mask).items():
            sums.setdefault(key, []).append(token_sum(values, among).sum(-1))
            counts.setdefault(key, []).append(among.sum((-2, -1)).double())
        log_weights.append(to_behavior.sum(-1))
    if sum(map(len, log_weights)) < 2:
        return {}
    errors = {
        key: standard_error.of_ratio(torch.cat(sums[key]), torch.cat(counts[key])) for key in sums
    }
    errors["weights/ess_update"] = standard_error.of_ess(torch.cat(log_weights))
    return {key: float(error) for key, error in errors.items() if error.isfinite()}
