"""Which groups are scored together: a pure function of lengths and a token budget.

tokens of a group        what is done
up to the budget         packed with others into one forward pass
up to 4 budgets          a forward pass of its own, whose activations are made again in backward
more                     several forward passes over some of its responses each

Several devices get whole groups, balanced by tokens, in equal numbers of micro-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

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
    prompt_length: int,
    response_lengths: Sequence[int],
    token_budget: int,
    longest: int = CHECKPOINTED_BUDGETS,
) -> list[slice]:
    """Which responses of one group share a forward pass: all of them, unless it is too long.

    A group above `longest` budgets is cut into runs of responses, the prompt repeated
    for each, that fit the budget; a single response that does not is a run of its own.

    Args:
        prompt_length: Tokens.
        response_lengths: [K] tokens.
        token_budget: Most tokens of a plain forward pass.
        longest: Budgets that one forward pass may take; 1 where the budget counts on checkpoints.

    Returns:
        Slices of the responses, in order; every response exactly once.
    """
    if prompt_length + sum(response_lengths) <= longest * token_budget:
        return [slice(0, len(response_lengths))]
    starts, room = [0], token_budget - prompt_length
    for at, length in enumerate(response_lengths):
        if length > room and at > starts[-1]:
            starts.append(at)
            room = token_budget - prompt_length
        room -= length
    return [slice(*ends) for ends in pairwise([*starts, len(response_lengths)])]


@dataclass(frozen=True)
class Slot:
    """What one device scores together.

    Attributes:
        rows: Of its groups; none where only other devices have a micro-batch left.
        pieces: The responses of each forward pass.
        passes: Forward passes to make, `len(pieces)` or more: those that others make meanwhile.
    """

    rows: list[int]
    pieces: list[slice]
    passes: int


def share_out(
    prompt_lengths: Sequence[int],
    response_lengths: Sequence[Sequence[int]],
    token_budget: int,
    ranks: int = 1,
    *,
    in_step: bool = False,
    pack_tokens: int | None = None,
    longest: int = CHECKPOINTED_BUDGETS,
) -> list[list[Slot]]:
    """The micro-batches of each device.

    Groups go, largest first, to the device with the fewest tokens so far. Where a device needs
    fewer micro-batches than another one, its largest are halved.

    Args:
        prompt_lengths: [G] tokens.
        response_lengths: [G][K] tokens.
        token_budget: See `micro_batches` and `response_pieces`.
        ranks: Devices.
        in_step: Every device makes every forward pass together with all others, because each needs
            its share of the weights: slots and passes are filled up to the same numbers.
        longest: See `response_pieces`.
        pack_tokens: Groups share a pass up to so many tokens; None, or more: up to the budget.

    Returns:
        For each device its slots; every row in exactly one of them.
    """
    sizes = [p + sum(r) for p, r in zip(prompt_lengths, response_lengths, strict=True)]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for row in sorted(range(len(sizes)), key=lambda g: (-sizes[g], g)):
        least = loads.index(min(loads))
        dealt[least].append(row)
        loads[least] += sizes[row]
    plans = []
    for rows in map(sorted, dealt):
        lengths = [prompt_lengths[g] for g in rows], [response_lengths[g] for g in rows]
        batches = micro_batches(*lengths, min(token_budget, pack_tokens or token_budget))
        plans.append([[rows[i] for i in batch] for batch in batches])
    most = max(map(len, plans))
    shared = []
    for plan in plans:
        _halve(plan, most, sizes)
        pieces = [
            response_pieces(prompt_lengths[b[0]], response_lengths[b[0]], token_budget, longest)
            if len(b) == 1
            else [slice(0, len(response_lengths[b[0]]))]
            for b in plan
        ]
        shared.append([Slot(b, cuts, len(cuts)) for b, cuts in zip(plan, pieces, strict=True)])
    return _in_step(shared) if in_step else shared


def _halve(plan: list[list[int]], number: int, sizes: list[int]) -> None:
    """Split the largest micro-batches until there are so many, or each is one group."""
    while len(plan) < number and any(len(batch) > 1 for batch in plan):
        at = max(
            (i for i, batch in enumerate(plan) if len(batch) > 1),
            key=lambda i: sum(sizes[row] for row in plan[i]),
        )
        middle = (len(plan[at]) + 1) // 2
        plan[at : at + 1] = [plan[at][:middle], plan[at][middle:]]


def _in_step(shared: list[list[Slot]]) -> list[list[Slot]]:
    """Line up slots of most passes first, and give each the passes of the longest beside it."""
    lines = [sorted(slots, key=lambda slot: -slot.passes) for slots in shared]
    passes = [max(slot.passes for slot in beside if slot) for beside in zip_longest(*lines)]
    return [
        [
            Slot(slot.rows, slot.pieces, number) if slot else Slot([], [], number)
            for slot, number in zip_longest(slots, passes)
        ]
        for slots in lines
    ]


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
