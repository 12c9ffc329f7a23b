"""Log-probs of stored responses under a policy, in packed forward passes."""

from collections.abc import Sequence

import numpy as np
import torch

from offline_rlvr.policy import Policy, micro_batches
from offline_rlvr.pool import GroupArrays
from offline_rlvr.stream.data import collate

#: Tokens of a forward pass; no gradient, so this is little memory.
TOKEN_BUDGET = 16384


def rescore(policy: Policy, groups: Sequence[GroupArrays]) -> list[list[np.ndarray]]:
    """For each group its K responses' log-probs, float32 [R_i] nats; the stored ones are not read.

    Args:
        policy: In eval mode.
        groups: Any number of groups with the same K.
    """
    pieces = micro_batches(
        [len(group.prompt_token_ids) for group in groups],
        [[len(ids) for ids in group.response_token_ids] for group in groups],
        TOKEN_BUDGET,
    )
    found: dict[int, list[np.ndarray]] = {}
    with torch.no_grad():
        for piece in pieces:
            batch = collate([groups[i] for i in piece])
            scores = policy.score(batch).logprobs.float().cpu()
            for row, i in enumerate(piece):
                lengths = batch.response_lengths[row].tolist()
                found[i] = [scores[row, k, :n].numpy() for k, n in enumerate(lengths)]
    return [found[i] for i in range(len(groups))]
