"""How long a pool took to sample: `timing.jsonl` beside the pool.

It is not a part of the pool's hash: two builds of the same pool never take the same time.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from offline_rlvr.durable import write_file
from offline_rlvr.errors import DataError

FILE_NAME = "timing.jsonl"


@dataclass(frozen=True)
class Timing:
    """What was sampled, verified and committed in how many seconds, the engine's start left out."""

    groups: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Timing") -> "Timing":
        return Timing(
            self.groups + other.groups, self.tokens + other.tokens, self.seconds + other.seconds
        )


def add_timing(pool: Path, timing: Timing) -> None:
    """Add one chunk of a build."""
    path = pool / FILE_NAME
    before = path.read_bytes() if path.exists() else b""
    line = json.dumps(asdict(timing)) + "\n"
    write_file(path, before + line.encode(), replace=True)


def read_timing(pools: Iterable[Path]) -> Timing:
    """The sum over pools; zero for those that were imported or built without a record.

    Raises:
        DataError: A damaged line.
    """
    total = Timing()
    for pool in pools:
        path = pool / FILE_NAME
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                total += Timing(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{path}:{number}: {error}", hint=f"remove line {number}; only times are lost"
                ) from error
    return total
