"""Build a pool: draw problems, sample K responses each, verify, commit; continue when typed again.

This package is the one place of the pool that reads a config.
"""

from pathlib import Path

from offline_rlvr import verifier
from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError
from offline_rlvr.pool.build.draw import (
    WHOLE,
    Slice,
    draw,
    identity_of,
    overlap_of,
    sampling_of,
)
from offline_rlvr.pool.build.fill import Filler, Throughput
from offline_rlvr.pool.build.forecast import forecast
from offline_rlvr.pool.build.tally import Tally
from offline_rlvr.pool.opening import has_commits, plain_identity, refuse_other
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.snapshot import IDENTITY_NAME
from offline_rlvr.pool.writer import PoolWriter

__all__ = ["Slice", "build_pool", "draw", "dry_run", "identity_of", "pilot", "sampling_of"]


def build_pool(config: Config, path: Path, part: Slice = WHOLE) -> Pool:
    """Make or continue the pool at `path` until enough mixed groups are stored.

    Args:
        config: The job.
        path: The pool's folder.
        part: Draw only this slice of the problems, with its share of the goals.

    Raises:
        ConfigError: The config cannot be used; nothing was started.
        IncompatibleError: `path` holds a pool of another identity.
        QualityGateError: The budget is used up, or too many responses could not be scored; all is
            kept.
    """
    tally, _ = _fill(config, path, part)
    tally.check_gate()
    tally.check_goal()
    return Pool.open(path, check="size")


def pilot(config: Config, path: Path, groups: int, part: Slice = WHOLE) -> list[str]:
    """Sample until `path` holds this many groups; say what the whole pool will take.

    They are the first groups of the pool: building it continues after them.

    Raises:
        ConfigError: `groups` is below 1.
        OfflineRlvrError: See `build_pool`.
    """
    if groups < 1:
        raise ConfigError(
            f"--pilot is {groups}; it must be at least 1", hint="take e.g. --pilot 64"
        )
    budget = config.pool.max_sampled_groups
    limit = groups * part.count if budget is None else min(groups * part.count, budget)
    pool = config.pool.model_copy(update={"max_sampled_groups": limit})
    tally, speed = _fill(config.model_copy(update={"pool": pool}), path, part)
    tally.check_gate()
    return forecast(config, Pool.open(path, check="size"), tally.available, part, speed)


def dry_run(config: Config, path: Path, part: Slice = WHOLE) -> list[str]:
    """Read the problems, check the settings, say what the pool will take; nothing is sampled.

    Raises:
        OfflineRlvrError: What would stop the build, too.
    """
    sampling = sampling_of(config)
    with config.build("verifier", verifier.load) as judge:
        draws = draw(config, judge)
    lines = [f"problems   {len(draws.problems)} to draw from"]
    lines += [f"           {count} dropped: {reason}" for reason, count in draws.dropped.items()]
    lines += [
        f"           {count} are also in the evaluation set {name!r}"
        for name, count in overlap_of(config, draws).items()
    ]
    stored = Pool.open(path, check="size") if (path / IDENTITY_NAME).exists() else None
    identity = identity_of(config, sampling, draws, part)
    if stored is not None and stored.commit:
        refuse_other(path, stored.identity, plain_identity(identity))
    available = len(part.positions(len(draws.problems)))
    return [*lines, *forecast(config, stored, available, part, None)]


def _fill(config: Config, path: Path, part: Slice) -> tuple[Tally, Throughput]:
    sampling = sampling_of(config)
    with config.build("verifier", verifier.load) as judge:
        draws = draw(config, judge)
        identity = identity_of(config, sampling, draws, part)
        if not has_commits(path):
            identity["overlap"] = overlap_of(config, draws)
        with PoolWriter.create_or_open(path, identity) as writer:
            available = len(part.positions(len(draws.problems)))
            tally = Tally(config, writer, judge.id, part, available)
            speed = Filler(config, writer, draws, sampling, judge, part, tally).run()
            writer.finish()
    return tally, speed
