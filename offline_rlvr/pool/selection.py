"""Selection is a view: which groups to train on, found from the grades at open time."""

import hashlib
from collections.abc import Sequence

import numpy as np

from offline_rlvr.errors import ConfigError
from offline_rlvr.pool.reader import Pool


def mixed(
    pool: Pool,
    min_correct: int | None = None,
    max_correct: int | None = None,
    exclude: Sequence[int] | np.ndarray = (),
) -> np.ndarray:
    """Ids of the mixed groups, ascending: every response scored, at least two different rewards.

    Args:
        pool: The pool.
        min_correct: Keep groups with at least this many correct responses.
        max_correct: Keep groups with at most this many correct responses.
        exclude: Ids never returned, the probe's for example.

    Returns:
        int64 [number of groups].
    """
    index = pool.index
    keep = index.mixed & ~np.isin(index.group_ids, np.asarray(exclude, np.int64))
    correct = index.correct.sum(1)
    if min_correct is not None:
        keep &= correct >= min_correct
    if max_correct is not None:
        keep &= correct <= max_correct
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


def training(
    pool: Pool,
    probe_groups: int,
    min_correct: int | None = None,
    max_correct: int | None = None,
    salt: str = "probe",
) -> tuple[np.ndarray, np.ndarray]:
    """(training ids, probe ids), ascending: the mixed groups outside the probe, and the probe."""
    held_out = probe(pool, probe_groups, salt)
    return mixed(pool, min_correct, max_correct, exclude=held_out), held_out
