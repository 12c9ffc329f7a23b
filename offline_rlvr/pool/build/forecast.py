"""What a pool will take, told from the part of it that is stored."""

import numpy as np

from offline_rlvr.amounts import duration, size
from offline_rlvr.config import Config
from offline_rlvr.pool.build.draw import Slice
from offline_rlvr.pool.build.fill import Throughput
from offline_rlvr.pool.build.tally import wilson
from offline_rlvr.pool.reader import Pool

#: An id, a log-prob and its text, before compression.
MOST_BYTES_PER_TOKEN = 14


def forecast(
    config: Config, pool: Pool | None, available: int, part: Slice, speed: Throughput | None
) -> list[str]:
    """Plain lines: groups, tokens, disk and hours until the goal.

    Args:
        config: The job.
        pool: What is stored of it, or None.
        available: Problems this builder may draw, those stored included.
        part: What it draws.
        speed: Measured throughput, or None.
    """
    wanted = part.share(config.pool.mixed_groups) + part.share(config.pool.probe_groups)
    k = config.pool.group_size
    if pool is None or not len(pool):
        most = part.budget(config.pool.max_sampled_groups, available)
        tokens = most * k * config.sampling.max_new_tokens
        return [
            f"goal       {wanted} mixed groups of {k} responses, of at most {most} sampled",
            f"tokens     at most {tokens:,}",
            f"disk       at most {size(tokens * MOST_BYTES_PER_TOKEN)}",
            "mixed rate and speed are not known yet: --pilot N samples N groups and tells",
        ]
    stored, mixed = len(pool), int(pool.index.mixed.sum())
    low, high = wilson(mixed, stored)
    tokens = pool.index.response_lengths.sum(dtype=np.int64) / stored
    left = max(0, wanted - mixed)
    needed, most = (left / rate if left and rate else 0.0 for rate in (mixed / stored, low))
    lines = [
        f"stored     {stored} groups, {mixed} mixed: {mixed / stored:.0%} "
        f"(95 %: {low:.0%} to {high:.0%})",
    ]
    if left and not mixed:
        return [*lines, f"to go      {left} mixed groups; none so far, so no forecast"]
    lines.append(
        f"to go      {left} mixed groups: about {needed:,.0f} groups more (at most {most:,.0f}), "
        f"of {available - stored:,} problems left"
    )
    lines.append(f"tokens     {tokens:,.0f} a group, about {needed * tokens:,.0f} more")
    lines.append(f"disk       about {size(pool.bytes / stored * (stored + needed))} in all")
    if speed is not None and speed.tokens:
        rate = speed.tokens / speed.seconds
        lines.append(
            f"speed      {rate:,.0f} tokens/s: about {duration(needed * tokens / rate)} more "
            f"(at most {duration(most * tokens / rate)}), without the start of the engine"
        )
    else:
        lines.append(
            "speed      nothing was sampled just now; --pilot N with a larger N measures it"
        )
    if needed > available - stored:
        lines.append(
            "           these problems will not do: add problems, or lower pool.mixed_groups"
        )
    return lines
