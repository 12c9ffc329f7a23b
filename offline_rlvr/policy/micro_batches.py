"""Which groups are scored together: a pure function of lengths and a token budget.

tokens of a group        what is done
up to the budget         packed with others into one forward pass
up to 4 budgets          a forward pass of its own, whose activations are made again in backward
more                     several forward passes over some of its responses each
"""

from collections.abc import Sequence
from itertools import pairwise

from offline_rlvr.errors import ConfigError

#: Tokens of a checkpointed forward pass, in budgets: it saves one hidden state per layer and token
#: in place of the ten or more tensors of that size that a plain one saves, and makes one layer's at
#: a time again.
CHECKPOINTED_BUDGETS = 4


def micro_batches(
    prompt_lengths: Sequence[int], response_lengths: Sequence[Sequence[int]], token_budget: int
) -> list[list[int]]:
    """Partition group rows into micro-batches of whole groups.

    The packed row has no padding; similar groups go together because attention pads each response
    to the longest of its micro-batch. Groups are taken in order of that length and cut where the
    budget is full, into as few and as even pieces as that order allows. A group above the budget is
    a micro-batch of its own.

    Args:
        prompt_lengths: [G] tokens.
        response_lengths: [G][K] tokens.
        token_budget: Most tokens (prompt once, all responses) in a micro-batch.

    Returns:
        Lists of row indices; every row exactly once.

    Raises:
        ConfigError: A budget below 1.

    Example:
        >>> micro_batches([2, 2, 2], [[9, 9], [1, 1], [1, 2]], token_budget=10)
        [[0], [2, 1]]
    """
    if token_budget < 1:
        raise ConfigError(f"token_budget is {token_budget}; expected at least 1 token")
    sizes = [p + sum(r) for p, r in zip(prompt_lengths, response_lengths, strict=True)]
    longest = [max(r) for r in response_lengths]
    order = sorted(range(len(sizes)), key=lambda g: (-longest[g], -prompt_lengths[g], -sizes[g], g))
    greatest = max(sizes, default=0)
    pieces = _cut(order, sizes, token_budget)
    # The smallest budget that needs no more pieces than this one gives the most even ones.
    low, high = min(token_budget, -(-sum(sizes) // max(1, len(pieces)))), token_budget
    while low < high:
        middle = (low + high) // 2
        if len(_cut(order, sizes, middle)) <= len(pieces):
            high = middle
        else:
            low = middle + 1
    return _cut(order, sizes, low) if greatest else []


def response_pieces(
    prompt_length: int, response_lengths: Sequence[int], token_budget: int
) -> list[slice]:
    """Which responses of one group share a forward pass: all of them, unless it is too long.

    A group above `CHECKPOINTED_BUDGETS` budgets is cut into runs of responses, the prompt repeated
    for each, that fit the budget; a single response that does not is a run of its own.

    Args:
        prompt_length: Tokens.
        response_lengths: [K] tokens.
        token_budget: Most tokens of a plain forward pass.

    Returns:
        Slices of the responses, in order; every response exactly once.
    """
    if prompt_length + sum(response_lengths) <= CHECKPOINTED_BUDGETS * token_budget:
        return [slice(0, len(response_lengths))]
    starts, room = [0], token_budget - prompt_length
    for at, length in enumerate(response_lengths):
        if length > room and at > starts[-1]:
            starts.append(at)
            room = token_budget - prompt_length
        room -= length
    return [slice(*ends) for ends in pairwise([*starts, len(response_lengths)])]


def _cut(order: list[int], sizes: list[int], budget: int) -> list[list[int]]:
    """Fill micro-batches in order; a row that does not fit opens the next one."""
    pieces: list[list[int]] = []
    room = 0
    for row in order:
        if not pieces or sizes[row] > room:
            pieces.append([])
            room = budget
        pieces[-1].append(row)
        room -= sizes[row]
    return pieces
