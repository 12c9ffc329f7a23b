"""Grade a stored pool again, with another verifier or other settings: no model, no GPU.

Grades of several verifiers live side by side; nothing is ever overwritten. Training, statistics and
export use those that were completed last (see `reader.grades_in_use`), so an interrupted grading
changes no reward, and a finished one counts for everything that opens the pool afterwards. A run
that was started before is bound to the pool's hash and refuses to continue on the new rewards.
Grading by a verifier that has graded every group scores nothing: a commit says that its grades are
in use again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.pool.index import STATUS_NAMES
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.writer import PoolWriter
from offline_rlvr.progress import Progress
from offline_rlvr.records import Verdict
from offline_rlvr.verifier import Verifier

#: Groups scored between two commits: what an interruption can cost.
CHUNK_GROUPS = 256


@dataclass(frozen=True)
class Grades:
    """The verdicts of one verifier on the same G groups of K responses as another's.

    Attributes:
        verifier_id: Whose they are.
        rewards: float64 [G, K]; NaN = not scored.
        statuses: uint8 [G, K]; positions in `STATUS_NAMES`.
    """

    verifier_id: str
    rewards: np.ndarray
    statuses: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """bool [G, K]."""
        return self.statuses == STATUS_NAMES.index("correct")

    @property
    def scored(self) -> np.ndarray:
        """bool [G, K]."""
        return ~np.isnan(self.rewards)

    @property
    def mixed(self) -> np.ndarray:
        """bool [G], see `PoolIndex.mixed`."""
        return self.scored.all(1) & (self.rewards != self.rewards[:, :1]).any(1)


@dataclass(frozen=True)
class Change:
    """What another verifier changes on the groups of a pool.

    Attributes:
        group_ids: int64 [G].
        old: Grades in use before.
        new: The other verifier's.
    """

    group_ids: np.ndarray
    old: Grades
    new: Grades

    @property
    def kinds(self) -> dict[str, np.ndarray]:
        """bool [G, K] by kind of change; a response is of one kind at most.

        `other_reward`: scored by both and right or wrong by both, but with another number.
        """
        old, new = self.old, self.new
        both = old.scored & new.scored
        return {
            "right_to_wrong": both & old.correct & ~new.correct,
            "wrong_to_right": both & ~old.correct & new.correct,
            "newly_unscored": old.scored & ~new.scored,
            "newly_scored": ~old.scored & new.scored,
            "other_reward": both & (old.correct == new.correct) & (old.rewards != new.rewards),
        }


def grade(path: Path, judge: Verifier, *, chunk_groups: int = CHUNK_GROUPS) -> Change:
    """Grade every group that `judge` has not graded yet, and commit; continues when typed again.

    Args:
        path: The pool's folder.
        judge: The started verifier.
        chunk_groups: Groups scored between two commits.

    Returns:
        All groups, against the grades that would be in use without this verifier.

    Raises:
        DataError: An empty or damaged pool.
        BusyError: Somebody writes the pool.
    """
    with PoolWriter.reopen(path) as writer:
        pool = Pool.open(path, check="size")
        _refuse_empty(pool)
        graded = writer.graded_group_ids(judge.id)
        done = len(graded)
        todo = [i for i in writer.committed_group_ids.tolist() if i not in graded]
        with Progress("grading", len(pool), "groups") as progress:
            for first in range(0, len(todo), chunk_groups):
                ids = todo[first : first + chunk_groups]
                writer.append_grades(judge.id, _score(pool, ids, judge))
                progress.update(done + first + len(ids))
        if not todo and pool.verifier_in_use() != judge.id:
            writer.use_grades(judge.id)
        if writer.commit != pool.commit:
            writer.finish()
    return compare(path, judge.id)


def compare(path: Path, verifier_id: str) -> Change:
    """The stored grades of a verifier against those that would be in use without it.

    Against themselves when there are no others.
    """
    new = Pool.open(path, verifier_id, check="size")
    old = Pool.open(path, new.verifier_in_use(without=verifier_id), check="size")
    return Change(new.index.group_ids, _grades(old), _grades(new))


def preview(path: Path, judge: Verifier, groups: int) -> Change:
    """Score the first groups, compare with the grades in use, and store nothing.

    Raises:
        ConfigError: No groups were asked for.
        DataError: An empty or damaged pool.
    """
    if groups < 1:
        raise ConfigError(f"a preview of {groups} groups; it takes at least 1")
    pool = Pool.open(path)
    _refuse_empty(pool)
    ids = pool.index.group_ids[:groups]
    verdicts = _score(pool, ids.tolist(), judge)
    rewards = [[np.nan if v.reward is None else v.reward for v in row] for row in verdicts.values()]
    statuses = [[STATUS_NAMES.index(v.status) for v in row] for row in verdicts.values()]
    new = Grades(judge.id, np.array(rewards, np.float64), np.array(statuses, np.uint8))
    stored = _grades(pool)
    old = Grades(stored.verifier_id, stored.rewards[: len(ids)], stored.statuses[: len(ids)])
    return Change(ids, old, new)


def _score(pool: Pool, ids: Sequence[int], judge: Verifier) -> dict[int, list[Verdict]]:
    groups = pool.read(ids)
    verdicts = judge.score([(group.answer, text) for group in groups for text in group.texts])
    k = pool.group_size
    return {i: list(verdicts[at * k : (at + 1) * k]) for at, i in enumerate(ids)}


def _refuse_empty(pool: Pool) -> None:
    if not len(pool):
        raise DataError(f"{pool.path} has no groups", hint="build the pool first")


def _grades(pool: Pool) -> Grades:
    return Grades(pool.verifier_id or "no verifier", pool.index.rewards, pool.index.statuses)
