r"""Integer arithmetic with a spread of difficulty: `317 + 48`, `62 * 7`, `(31 - 8) * 6`.

Every problem belongs to one *kind* (a template and the number of digits of each operand). A kind is
a finite, countable set, so "are there that many?" has an exact answer, and two kinds never share a
question.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from offline_rlvr.errors import ConfigError
from offline_rlvr.records import Problem

Split = Literal["train", "heldout"]

#: One question in so many is held out, by the hash of its text.
HELDOUT_ONE_IN = 10

#: Operands by their number of digits.
_OPERANDS = {1: range(10), 2: range(10, 100), 3: range(100, 1000)}

_SUMS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (3, 2), (3, 3))
_DIFFERENCES = ((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3))
_PRODUCTS = ((1, 1), (1, 2), (2, 1), (3, 1))

_OPERATIONS = frozenset("+-*")

#: Template, the answer as a function of the operands, the operand sizes.
_ONE_STEP = (
    ("{} + {}", lambda a, b: a + b, _SUMS),
    ("{} - {}", lambda a, b: a - b, _DIFFERENCES),
    ("{} * {}", lambda a, b: a * b, _PRODUCTS),
)
_TWO_STEP = (
    ("{} + {} + {}", lambda a, b, c: a + b + c, ((2, 1, 1),)),
    ("{} - {} + {}", lambda a, b, c: a - b + c, ((2, 1, 1),)),
    ("{} + {} * {}", lambda a, b, c: a + b * c, ((2, 1, 1),)),
    ("({} + {}) * {}", lambda a, b, c: (a + b) * c, ((1, 1, 1),)),
)


@dataclass(frozen=True)
class _Kind:
    """All problems of one template and operand sizes, numbered 0 .. size - 1."""

    template: str
    answer: Callable[..., int]
    digits: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(len(_OPERANDS[d]) for d in self.digits)

    def problem(self, index: int) -> tuple[str, str]:
        """Question and answer number `index`."""
        operands: list[int] = []
        for digits in reversed(self.digits):
            index, position = divmod(index, len(_OPERANDS[digits]))
            operands.append(_OPERANDS[digits][position])
        operands.reverse()
        return self.template.format(*operands), str(self.answer(*operands))


def split_of(question: str) -> Split:
    """The split a question belongs to: a function of its text alone, whatever the seed."""
    digest = hashlib.sha256(question.encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % HELDOUT_ONE_IN == 0 else "train"


def load(
    count: int,
    seed: int = 0,
    split: Split = "train",
    max_digits: int = 3,
    two_step: bool = True,
    operations: str = "+-*",
) -> list[Problem]:
    """Draw `count` different problems, kinds in equal shares as long as they last.

    Args:
        count: How many problems, >= 1.
        seed: Decides which problems and their order.
        split: `train` or `heldout`; the two share no question, for any seeds.
        max_digits: Largest number of digits of an operand, 1 to 3.
        two_step: Also expressions of two operations.
        operations: The only ones that occur, some of `+-*`.

    Raises:
        ConfigError: An argument is out of range, or there are fewer than `count` such problems.
    """
    _check(count, split, max_digits, operations)
    kinds = [
        _Kind(template, answer, digits)
        for template, answer, sizes in _ONE_STEP + (_TWO_STEP if two_step else ())
        for digits in sizes
        if max(digits) <= max_digits and set(template) & _OPERATIONS <= set(operations)
    ]
    rng = random.Random(seed)
    streams = [_draws(kind, split, random.Random(rng.getrandbits(64))) for kind in kinds]
    drawn: list[tuple[str, str]] = []
    while streams and len(drawn) < count:
        # One problem of every kind that has some left, in an order that differs from round to
        # round.
        for stream in rng.sample(streams, len(streams)):
            problem = next(stream, None)
            if problem is None:
                streams.remove(stream)
            else:
                drawn.append(problem)
    if len(drawn) < count:
        raise ConfigError(
            f"arithmetic: {count} {split} problems asked, but with max_digits={max_digits}, "
            f"two_step={two_step} and operations={operations!r} only {len(drawn)} exist",
            hint=f"set count to at most {len(drawn)}, or raise max_digits",
        )
    return [
        Problem(f"arithmetic-{split}-{seed}-{i}", question, answer)
        for i, (question, answer) in enumerate(drawn[:count])
    ]


def _check(count: int, split: str, max_digits: int, operations: str) -> None:
    if count < 1:
        raise ConfigError(f"arithmetic: count is {count}; it must be at least 1")
    if split not in ("train", "heldout"):
        raise ConfigError(f"arithmetic: split is {split!r}; allowed: 'train', 'heldout'")
    if max_digits not in _OPERANDS:
        raise ConfigError(f"arithmetic: max_digits is {max_digits}; allowed: 1, 2, 3")
    if not set(operations) & _OPERATIONS or set(operations) - _OPERATIONS:
        raise ConfigError(f"arithmetic: operations is {operations!r}; allowed: some of '+-*'")


def _draws(kind: _Kind, split: Split, rng: random.Random) -> Iterator[tuple[str, str]]:
    """The problems of one kind and split, each once, in random order.

    A Fisher-Yates shuffle whose moved entries live in a dict: memory grows with what is drawn, not
    with the kind, which may hold a million problems.
    """
    moved: dict[int, int] = {}
    for position in range(kind.size):
        other = rng.randrange(position, kind.size)
        drawn = moved.get(other, other)
        moved[other] = moved.get(position, position)
        question, answer = kind.problem(drawn)
        if split_of(question) == split:
            yield question, answer
