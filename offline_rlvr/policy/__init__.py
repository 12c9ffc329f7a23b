"""Model and LoRA loading, shared-prefix packing, attention, selected log-probs."""

from offline_rlvr.policy.compatibility import packable
from offline_rlvr.policy.load import load_policy, load_weights, save_policy
from offline_rlvr.policy.micro_batches import (
    CHECKPOINTED_BUDGETS,
    Slot,
    micro_batches,
    response_pieces,
    share_out,
)
from offline_rlvr.policy.model import Policy, Scores, eager

__all__ = [
    "CHECKPOINTED_BUDGETS",
    "Policy",
    "Scores",
    "Slot",
    "eager",
    "load_policy",
    "load_weights",
    "micro_batches",
    "packable",
    "response_pieces",
    "save_policy",
    "share_out",
]
