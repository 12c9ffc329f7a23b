"""Selection is a view: which groups to train on, found from the grades at open time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from offline_rlvr.errors import ConfigError
from offline_rlvr.pool.index import PoolIndex
from offline_rlvr.pool.reader import Pool


@dataclass(frozen=True)
class Filters:
    """What a mixed group must be to be trained on; None or False takes nothing away.

    Attributes:
        min_correct: At least this many of its K responses are correct.
        max_correct: At most this many are.
        max_prompt_tokens: Its prompt has at most this many tokens.
        max_response_tokens: Its longest response has at most this many.
        drop_truncated: No response was cut at the length limit.
    """

    min_correct: int | None = None
    max_correct: int | None = None
    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    drop_truncated: bool = False

    def passed(self, index: PoolIndex) -> dict[str, np.ndarray]:
        """For each filter that is on, by name: bool [groups of the index], True where it passes."""
        correct = index.correct.sum(1)
        longest = index.response_lengths.max(1, initial=0)
        found = {
            "min_correct": self.min_correct is not None and correct >= self.min_correct,
            "max_correct": self.max_correct is not None and correct <= self.max_correct,
            "max_prompt_tokens": self.max_prompt_tokens is not None
            and index.prompt_lengths <= self.max_prompt_tokens,
            "max_response_tokens": self.max_response_tokens is not None
            and longest <= self.max_response_tokens,
            "drop_truncated": self.drop_truncated and ~index.truncated.any(1),
        }
        return {name: passes for name, passes in found.items() if passes is not False}


@dataclass(frozen=True)
class Selected:
    """The groups of a training, and what was left out on the way there.

    Attributes:
        training_ids: int64, ascending.
        probe_ids: int64, ascending.
        mixed: Mixed groups of the pool.
        removed: Mixed groups taken away by the probe and by each filter that is on, in order; a
            group counts for the first that takes it.
    """

    training_ids: np.ndarray
    probe_ids: np.ndarray
    mixed: int
    removed: dict[str, int]

    def __str__(self) -> str:
        taken = "".join(f", {name} takes {count:,}" for name, count in self.removed.items())
        return f"{self.mixed:,} mixed groups{taken}: {len(self.training_ids):,} left"


def mixed(pool: Pool, exclude: Sequence[int] | np.ndarray = ()) -> np.ndarray:
    """Ids of the mixed groups, ascending: every response scored, at least two different rewards.

    Args:
        pool: The pool.
        exclude: Ids never returned, the probe's for example.

    Returns:
        int64 [number of groups].
    """
    index = pool.index
    keep = index.mixed & ~np.isin(index.group_ids, np.asarray(exclude, np.int64))
    return index.group_ids[keep]


def responses(pool: Pool, *, right: bool = False, wrong: bool = False) -> np.ndarray:
    """Which responses are right (status `correct`) or wrong (any other that has a reward).

    Both together are the scored responses, neither is all. Unscored is neither right nor wrong.

    Returns:
        bool [groups of the index, K].
    """
    index = pool.index
    if not (right or wrong):
        return np.ones(index.correct.shape, bool)
    is_wrong = ~index.correct & ~np.isnan(index.rewards)
    return (index.correct & right) | (is_wrong & wrong)


def probe(pool: Pool, size: int, salt: str = "probe") -> np.ndarray:
    """Ids of a fixed unfiltered slice, ascending.

    It is the `size` fully scored groups whose ids have the smallest hashes.

    Mixed or not does not matter, so accuracy and drift on the probe are those of the whole pool. A
    smaller probe is part of a larger one.

    Raises:
        ConfigError: The pool has fewer fully scored groups.
    """
    scored = pool.index.group_ids[pool.index.scored]
    if not 0 <= size <= len(scored):
        raise ConfigError(
            f"a probe of {size} groups was asked for; "
            f"{pool.path} has {len(scored)} fully scored groups",
            hint=f"choose a probe of 0 to {len(scored)} groups",
        )
    keys = {int(i): hashlib.sha256(f"{salt}:{i}".encode()).digest() for i in scored.tolist()}
    chosen = sorted(keys, key=keys.__getitem__)[:size]
    return np.sort(np.array(chosen, np.int64))


def select(
    pool: Pool, probe_groups: int, filters: Filters = Filters(), salt: str = "probe"
) -> Selected:
    """The groups to train on: mixed, outside the probe, and passing the filters.

    The probe is the same whatever the filters are.

    Raises:
        ConfigError: No group is left, or the probe is larger than the pool.
    """
    index, held_out = pool.index, probe(pool, probe_groups, salt)
    left = index.mixed.copy()
    removed = {}
    for name, passes in {
        "probe": ~np.isin(index.group_ids, held_out),
        **filters.passed(index),
    }.items():
        removed[name] = int((left & ~passes).sum())
        left &= passes
    found = Selected(index.group_ids[left], held_out, int(index.mixed.sum()), removed)
    if not left.any():
        raise ConfigError(
            f"no group of {pool.path} is left to train on: {found}",
            hint="loosen `selection`, lower pool.probe_groups, or build a larger pool",
        )
    return found


def training(
    pool: Pool, probe_groups: int, filters: Filters = Filters(), salt: str = "probe"
) -> tuple[np.ndarray, np.ndarray]:
    """(training ids, probe ids), ascending; see `select`."""
    found = select(pool, probe_groups, filters, salt)
    return found.training_ids, found.probe_ids
