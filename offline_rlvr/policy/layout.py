"""Where every token of a micro-batch lies: the shared-prefix layout.

All groups of a micro-batch form one row without padding, group after group:
`[prompt][response 1]...[response K]`.

    group 0, K = 2      prompt a b c, responses x y | z        row        a b c x y z
                                                               positions  0 1 2 3 4 3
                                                               member     0 0 0 1 1 2

A response token sees its prompt and the earlier tokens of its own response. Its log-prob is read
from the hidden state of the token before it: the prompt's last token for the first token of each
response (the next-token shift).
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from offline_rlvr.batch import PoolBatch
from offline_rlvr.errors import BatchError


@dataclass(frozen=True, eq=False)
class Layout:
    """One packed row of N tokens holding G groups (and maybe a tail of filler tokens).

    Attributes:
        shape: (G, K, P, T) of the padded tensors of the batch.
        tokens: [N] token ids.
        positions: [N] restarting after the prompt for each response.
        groups: [N] group of each token; G for the filler tail.
        members: [N] 0 for prompt (and filler) tokens, i for response i.
        slots: [N - filler] index of each token in the padded prompts [G * P] followed by the
            padded responses [G * K * T].
        predictors: [C] row index whose hidden state predicts each response token.
        response_slots: [C] index of each response token in [G * K * T].
        prompt_lengths: [G].
        backend: Name of the attention back-end (see `attention.py`).
        masks: Attention masks made for this layout, by back-end and window; shared by all layers.
        windows: Sliding window (or None) of each attention layer that has used this layout.
    """

    shape: tuple[int, int, int, int]
    tokens: Tensor
    positions: Tensor
    groups: Tensor
    members: Tensor
    slots: Tensor
    predictors: Tensor
    response_slots: Tensor
    prompt_lengths: Tensor
    backend: str
    masks: dict = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)

    @property
    def targets(self) -> Tensor:
        """[C] ids of the response tokens, in row order."""
        return self.tokens[: len(self.slots)][self.members[: len(self.slots)] > 0]

    def to(self, device: torch.device) -> "Layout":
        """The same layout on another device, without its masks."""
        moved = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, masks={}, **moved)


def plan_layout(batch: PoolBatch, vocab_size: int, backend: str, multiple: int = 1) -> Layout:
    """Lay a batch out as one row. Works on the CPU; only stored lengths decide what is a token.

    Args:
        batch: Whole groups, on any device.
        vocab_size: Rows of the embedding.
        backend: Attention back-end to record.
        multiple: Fill the row up to a multiple of this many tokens.

    Raises:
        BatchError: An empty prompt or response, a length beyond the padded width, or an id outside
            the vocabulary.
    """
    prompts, responses = batch.prompt_token_ids.cpu(), batch.response_token_ids.cpu()
    prompt_lengths, lengths = batch.prompt_lengths.cpu().long(), batch.response_lengths.cpu().long()
    (g, p), (_, k, t) = prompts.shape, responses.shape
    _check_lengths(prompt_lengths, lengths, p, t)

    sizes = torch.cat([prompt_lengths[:, None], lengths], 1).flatten()  # segments, in row order
    starts = sizes.cumsum(0) - sizes
    n = int(sizes.sum())
    segments = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    offsets = torch.arange(n) - starts[segments]
    groups, members = segments // (k + 1), segments % (k + 1)
    is_response = members > 0

    positions = offsets + torch.where(is_response, prompt_lengths[groups], 0)
    response_slots = (groups * k + members - 1) * t + offsets
    slots = torch.where(is_response, g * p + response_slots, groups * p + offsets)
    tokens = torch.cat([prompts.flatten(), responses.flatten()])[slots].long()
    _check_ids(tokens, groups, members, vocab_size)
    prompt_ends = starts[:: k + 1] + prompt_lengths - 1
    predictors = torch.where(offsets > 0, torch.arange(n) - 1, prompt_ends[groups])

    filler = -n % multiple

    def fill(values: Tensor, tail: Tensor | int) -> Tensor:
        return torch.cat([values, torch.as_tensor(tail).expand(filler)]) if filler else values

    return Layout(
        shape=(g, k, p, t),
        tokens=fill(tokens, 0),
        positions=fill(positions, 0),
        groups=fill(groups, g),
        members=fill(members, 0),
        slots=slots,
        predictors=predictors[is_response],
        response_slots=response_slots[is_response],
        prompt_lengths=prompt_lengths,
        backend=backend,
    )


def _check_lengths(prompt_lengths: Tensor, lengths: Tensor, p: int, t: int) -> None:
    bad = (prompt_lengths < 1) | (prompt_lengths > p)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise BatchError(
            f"group {row} of this batch has a prompt of {int(prompt_lengths[row])} tokens; "
            f"expected 1 to {p} (the width of prompt_token_ids)"
        )
    bad = (lengths < 1) | (lengths > t)
    if bad.any():
        row, response = bad.nonzero()[0].tolist()
        raise BatchError(
            f"group {row}, response {response} of this batch has {int(lengths[row, response])} "
            f"tokens; expected 1 to {t} (the width of response_token_ids)"
        )


def _check_ids(tokens: Tensor, groups: Tensor, members: Tensor, vocab_size: int) -> None:
    bad = ((tokens < 0) | (tokens >= vocab_size)).nonzero()
    if len(bad):
        at = int(bad[0])
        member = int(members[at])
        where = f"response {member - 1}" if member else "prompt"
        raise BatchError(
            f"group {int(groups[at])}, {where} of this batch holds token id {int(tokens[at])}; "
            f"the model knows ids 0 to {vocab_size - 1}",
            hint="train with the model (and tokenizer) that built the pool",
        )
