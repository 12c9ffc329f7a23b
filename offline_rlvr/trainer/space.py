"""Does the disk hold what a training keeps there? Asked before it starts, not at update 20."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from offline_rlvr.amounts import size
from offline_rlvr.config import Config
from offline_rlvr.errors import ResourceError
from offline_rlvr.trainer.decisions import schedules_of
from offline_rlvr.trainer.setup import Setup


@dataclass(frozen=True)
class DiskNeed:
    """What a training has on the disk at its fullest, in bytes.

    Attributes:
        weights: Of one checkpoint.
        optimizer: Of one checkpoint.
        checkpoints: How many lie there at once: those kept and the one being written.
        anchors: The tables that these checkpoints name.
    """

    weights: int
    optimizer: int
    checkpoints: int
    anchors: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.checkpoints * (self.weights + self.optimizer) + self.anchors

    def __str__(self) -> str:
        return (
            f"about {size(self.bytes)}: {self.checkpoints} checkpoints of "
            f"{size(self.weights + self.optimizer)} (weights and optimizer), "
            f"{size(self.anchors)} of anchor tables"
        )


def disk_need(config: Config, setup: Setup, trained: int) -> DiskNeed:
    """The arithmetic.

    Args:
        config: Says how often anchors are refreshed, and how many checkpoints are kept.
        setup: The training.
        trained: Weights that it trains; they and Adam's two moments are float32.
    """
    at_once = config.train.keep_checkpoints + config.train.keep_best + 1
    index = setup.pool.index
    longest = dict(zip(index.group_ids.tolist(), index.response_lengths.max(axis=1), strict=True))
    sizes = [
        _scores(setup.plan.groups(update), longest, setup.pool.group_size)
        for update in range(1, setup.last + 1)
    ]
    tables = 0
    for schedule in schedules_of(config, setup.objective).values():
        windows = schedule.windows(setup.last)
        of_tables = (sum(sizes[window.start - 1 : window.stop - 1]) for window in windows)
        tables += sum(sorted(of_tables)[-at_once:])
    return DiskNeed(4 * trained, 8 * trained, min(at_once, setup.last), tables)


def check_space(run: Path, need: DiskNeed) -> None:
    """Refuse to start a training that its disk cannot hold.

    Args:
        run: The run's folder; what an earlier attempt left there is reused.
        need: From `disk_need`.

    Raises:
        ResourceError: With what is needed, what is free, and what to change.
    """
    there = sum(
        path.stat().st_size
        for part in ("checkpoints", "anchors")
        for path in (run / part).rglob("*")
        if path.is_file()
    )
    free = shutil.disk_usage(run).free
    if need.bytes - there > free:
        already = f", {size(there)} are there already" if there else ""
        raise ResourceError(
            f"{run} needs {need}{already}; {size(free)} are free",
            hint="free some space, lower train.keep_checkpoints, or choose a --run on another disk",
        )


def _scores(group_ids: Sequence[int], longest: dict[int, int], k: int) -> int:
    """Bytes of one minibatch's log-probs, padded to its longest response."""
    return 4 * len(group_ids) * k * int(max(longest[group_id] for group_id in group_ids))
