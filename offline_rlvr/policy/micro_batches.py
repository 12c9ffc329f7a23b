"""Which groups are scored together: a pure function of lengths and a token budget."""

from collections.abc import Sequence

from offline_rlvr.errors import ConfigError


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
