"""The two tensor batches of the trainer, validated where they are made.

`PoolBatch` comes from the stream (token ids and what the pool stored); `TokenBatch` is what an
objective sees (log-probs only). Both hold G whole groups of K responses; T is the longest response
here, index t *is* response token t, and padding is recognised by stored lengths alone, never by a
token's value.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from offline_rlvr.errors import BatchError

#: A stored or computed log-prob may exceed 0 by rounding only.
MAX_LOGPROB = 1e-6


class Totals(NamedTuple):
    """Normalizers of a whole update, all its micro-batches and ranks; known before a forward."""

    groups: int
    tokens: int


@dataclass(frozen=True)
class PoolBatch:
    """G whole groups as the pool stored them.

    Attributes:
        group_ids: [G] ids in the pool.
        prompt_token_ids: [G, P] padded on the right.
        prompt_lengths: [G].
        response_token_ids: [G, K, T] padded on the right.
        response_lengths: [G, K], first EOS included.
        behavior_logprobs: [G, K, T] nats, float32, 0 in the padding.
        rewards: [G, K].
    """

    group_ids: Int[Tensor, " G"]
    prompt_token_ids: Int[Tensor, "G P"]
    prompt_lengths: Int[Tensor, " G"]
    response_token_ids: Int[Tensor, "G K T"]
    response_lengths: Int[Tensor, "G K"]
    behavior_logprobs: Float[Tensor, "G K T"]
    rewards: Float[Tensor, "G K"]

    @property
    def response_mask(self) -> Bool[Tensor, "G K T"]:
        """True where the token counts."""
        positions = torch.arange(self.response_token_ids.shape[-1], device=self.rewards.device)
        return positions < self.response_lengths[..., None]

    @property
    def totals(self) -> Totals:
        """Groups and response tokens of this batch."""
        return Totals(len(self.group_ids), int(self.response_lengths.sum()))

    def select(self, rows: list[int]) -> "PoolBatch":
        """The given groups, in that order, with padding trimmed to what they need."""
        index = torch.as_tensor(rows, device=self.rewards.device)
        prompt_lengths = self.prompt_lengths[index]
        lengths = self.response_lengths[index]
        p, t = int(prompt_lengths.max()), int(lengths.max())
        return PoolBatch(
            self.group_ids[index],
            self.prompt_token_ids[index, :p],
            prompt_lengths,
            self.response_token_ids[index][..., :t],
            lengths,
            self.behavior_logprobs[index][..., :t],
            self.rewards[index],
        )

    def responses(self, piece: slice) -> "PoolBatch":
        """Some of each group's responses, with padding trimmed to what they need."""
        lengths = self.response_lengths[:, piece]
        t = int(lengths.max())
        return replace(
            self,
            response_token_ids=self.response_token_ids[:, piece, :t],
            response_lengths=lengths,
            behavior_logprobs=self.behavior_logprobs[:, piece, :t],
            rewards=self.rewards[:, piece],
        )

    def to(self, device: torch.device | str) -> "PoolBatch":
        """The same batch on another device."""
        moved = {name: getattr(self, name).to(device) for name in self.__dataclass_fields__}
        return replace(self, **moved)


@dataclass(frozen=True)
class TokenBatch:
    """What an objective sees: per-token log-probs (nats) of G groups, K responses, T tokens.

    Attributes:
        policy_logprobs: [G, K, T] log pi_theta of the sampled token; carries the gradient.
        behavior_logprobs: [G, K, T] log mu of the sampled token, stored at sampling.
        rewards: [G, K].
        response_mask: [G, K, T] True where the token counts (first EOS included).
        ref_logprobs: [G, K, T] log-probs of the active reference, when the objective declares that
            anchor.
        old_logprobs: [G, K, T] log-probs of the learner at the start of its update block, likewise.

    Raises:
        BatchError: Shapes differ, a response is empty, or a value under the mask is not finite
            (log-probs also: positive). The message names group and response.
    """

    policy_logprobs: Float[Tensor, "G K T"]
    behavior_logprobs: Float[Tensor, "G K T"]
    rewards: Float[Tensor, "G K"]
    response_mask: Bool[Tensor, "G K T"]
    ref_logprobs: Float[Tensor, "G K T"] | None = None
    old_logprobs: Float[Tensor, "G K T"] | None = None

    def __post_init__(self) -> None:
        shape = self.policy_logprobs.shape
        if len(shape) != 3 or min(shape) < 1:
            raise BatchError(
                f"policy_logprobs has shape {tuple(shape)}; expected [G, K, T] with every size >= 1"
            )
        if self.rewards.shape != shape[:2]:
            raise BatchError(
                f"rewards has shape {tuple(self.rewards.shape)}; "
                f"expected [G, K] = {tuple(shape[:2])}"
            )
        if self.response_mask.shape != shape or self.response_mask.dtype != torch.bool:
            raise BatchError(
                f"response_mask is {self.response_mask.dtype} of shape "
                f"{tuple(self.response_mask.shape)}; "
                f"expected bool of shape {tuple(shape)}"
            )
        self._refuse(~self.response_mask.any(-1), "an empty response (no token under the mask)")
        self._refuse(~self.rewards.isfinite(), "a non-finite reward")
        for name in ("policy_logprobs", "behavior_logprobs", "ref_logprobs", "old_logprobs"):
            value = getattr(self, name)
            if value is None:
                continue
            if value.shape != shape:
                raise BatchError(f"{name} has shape {tuple(value.shape)}; expected {tuple(shape)}")
            value = value.detach()
            # NaN fails every comparison, so "not <=" catches it together with positive values.
            bad = self.response_mask & (~(value <= MAX_LOGPROB) | value.isinf())
            self._refuse(bad.any(-1), f"a non-finite or positive log-prob in {name}")

    def _refuse(self, bad: Bool[Tensor, "G K"], what: str) -> None:
        if bad.any():
            group, response = bad.nonzero()[0].tolist()
            raise BatchError(f"group {group}, response {response} of this batch has {what}")

    def require(self, *anchors: str) -> None:
        """Raise BatchError when an anchor (`reference`, `old`) that is needed is missing."""
        fields = {"reference": "ref_logprobs", "old": "old_logprobs"}
        for anchor in anchors:
            if getattr(self, fields[anchor]) is None:
                raise BatchError(
                    f"this objective needs {fields[anchor]} (the {anchor!r} anchor); "
                    "the batch has none"
                )
