"""Where a build stands: towards its goal, its budget and its gate."""

import math
import time
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from offline_rlvr.config import Config
from offline_rlvr.errors import QualityGateError
from offline_rlvr.pool.build.draw import Slice
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.selection import mixed
from offline_rlvr.pool.writer import PoolWriter
from offline_rlvr.records import Group

#: Quantile of a 95 % interval.
Z = NormalDist().inv_cdf(0.975)


class Tally:
    """Counts of a pool while it grows, the groups of earlier attempts included.

    The probe slice takes at most `probe_groups` mixed groups away from training, so that many are
    sampled on top: `mixed` counts from below zero.

    Args:
        config: The job; goals and budgets are for the whole, a slice has its share of them.
        writer: The pool.
        verifier_id: Whose grades count.
        part: What this builder draws.
        available: Problems there are for this builder, drawn or not.

    Attributes:
        wanted, mixed: The goal and what there is of it.
        sampled: Groups stored.
        tokens: Response tokens added by this builder in this attempt.
    """

    def __init__(
        self, config: Config, writer: PoolWriter, verifier_id: str, part: Slice, available: int
    ):
        pool = config.pool
        self.wanted = part.share(pool.mixed_groups)
        self.max_unscored = pool.max_unscored
        self.deadline = time.monotonic() + 3600 * (pool.max_hours or math.inf)
        self.available = available
        self.limit = part.budget(pool.max_sampled_groups, available)
        self.sampled = self.unscored = self.responses = self.tokens = 0
        self.mixed = -part.share(pool.probe_groups)
        if writer.commit:
            self._count_stored(writer, verifier_id)

    def _count_stored(self, writer: PoolWriter, verifier_id: str) -> None:
        pool = Pool.open(writer.path, check="size")
        # After a grading by another verifier: this one's grades count again once it goes on.
        if verifier_id in pool.verifier_ids:
            pool = Pool.open(writer.path, verifier_id, check="size")
        rewards = pool.index.rewards
        self.sampled = len(rewards)
        self.mixed += len(mixed(pool))
        self.unscored, self.responses = int(np.isnan(rewards).sum()), rewards.size

    def add(self, groups: Sequence[Group]) -> None:
        """Count newly committed groups."""
        for group in groups:
            rewards = [verdict.reward for verdict in group.verdicts]
            missing = rewards.count(None)
            self.mixed += not missing and len(set(rewards)) > 1
            self.unscored += missing
            self.responses += len(rewards)
            self.tokens += sum(len(response.token_ids) for response in group.responses)
        self.sampled += len(groups)

    def room(self, under_way: int) -> int:
        """How many groups are needed for certain and allowed, besides those `under_way`.

        None is, as long as those under way could reach the goal: the last groups of a pool do not
        depend on how many were sampled ahead.
        """
        if self.mixed + under_way >= self.wanted or self._hopeless or self._late:
            return 0
        return max(0, self.limit - self.sampled - under_way)

    @property
    def _hopeless(self) -> bool:
        """Whether so many responses are unscored that it is no accident of the first few."""
        if not self.responses:
            return False
        return wilson(self.unscored, self.responses)[0] > self.max_unscored

    @property
    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def check_gate(self) -> None:
        """Refuse a pool whose verifier cannot score what the policy writes.

        Raises:
            QualityGateError: More responses are unscored than allowed.
        """
        if self.unscored > self.max_unscored * self.responses:
            raise QualityGateError(
                f"{self.unscored} of {self.responses} responses "
                f"({self.unscored / self.responses:.1%}) could not be scored; "
                f"at most {self.max_unscored:.1%} is allowed (pool.max_unscored)",
                hint="`offline-rlvr pool stats` shows the reasons; raise pool.max_unscored, or "
                "correct the verifier, grade what is stored with it (`offline-rlvr pool grade`) "
                "and type the same command again; everything sampled is kept",
            )

    def check_goal(self) -> None:
        """Refuse to call a pool complete that is not.

        Raises:
            QualityGateError: Problems, groups or hours ran out before the goal.
        """
        if self.mixed >= self.wanted:
            return
        again = "then type the same command again; everything sampled is kept"
        if self._late:
            reason = "pool.max_hours is used up"
            way = f"raise it or lower pool.mixed_groups, {again}"
        elif self.limit < self.available:
            reason = "pool.max_sampled_groups is used up"
            way = f"raise it or lower pool.mixed_groups, {again}"
        else:
            reason = "there are no more problems"
            way = f"lower pool.mixed_groups, {again}; more problems make another pool"
        raise QualityGateError(
            f"{max(self.mixed, 0)} of {self.wanted} mixed groups after sampling {self.sampled} "
            f"groups (of {self.available} problems); {reason}",
            hint=way,
        )


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """Ends of the 95 % Wilson score interval of a rate.

    Args:
        hits: 0 to `trials`.
        trials: At least 1.
    """
    rate, z2 = hits / trials, Z * Z
    center = rate + z2 / (2 * trials)
    spread = Z * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    scale = 1 + z2 / trials
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)
