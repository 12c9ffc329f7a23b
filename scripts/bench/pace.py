"""Arms of a benchmark: processes that do one update at a time, when they are told to.

Idle arms wait for a line on standard input, so arms can take turns update by update and a busy
moment of the machine meets all of them alike. Needs the standard library only: arms may run in
other virtual environments.
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self


class Pace:
    """The arm's side. An update lasts from `wait` (at first: from the start) to `stop`."""

    def __init__(self) -> None:
        self._reports = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print goes to the log
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """Of the update that has just ended: seconds, and CPU seconds of all threads."""
        wall, cpu = time.perf_counter(), time.process_time()
        return {"seconds": wall - self._wall, "cpu_s": cpu - self._cpu}

    def wait(self, update: dict[str, float], **facts: Any) -> None:
        """Report an update, and return when the next one shall start; ends the process at last."""
        report = {**update, "rss": resident("VmHWM"), **facts}
        self._reports.write(json.dumps(report) + "\n")
        self._reports.flush()
        if not os.read(0, 1):
            os._exit(0)  # nothing of an arm is kept: its files lie in a temporary folder
        self._start()


class Arm:
    """The benchmark's side: starts the process, which does its first update at once.

    Args:
        name: For tables and messages.
        command: What to run.
        folder: Where its log goes.
    """

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path):
        self.name = name
        self.reports: list[dict[str, Any]] = []
        self._log = folder / f"{name.replace(' ', '-')}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OFFLINE_RLVR_CACHE": str(folder / "cache")},
                text=True,
                bufsize=1,
            )
        self._read()

    def update(self) -> None:
        """Do one update and keep its report."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"{self.name} ended early:\n{tail}")
        self.reports.append(json.loads(line))

    def timed(self, warm_up: int) -> list[float]:
        """Seconds of the updates after the warm-up."""
        return [report["seconds"] for report in self.reports[warm_up:]]

    def seconds(self, warm_up: int) -> float:
        """Median of the updates after the warm-up."""
        return statistics.median(self.timed(warm_up))

    @property
    def memory(self) -> int:
        """Bytes: most memory that tensors held on the GPU, or else that the process held."""
        last = self.reports[-1]
        return last.get("cuda", last["rss"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def take_turns(arms: Sequence[Arm], updates: int) -> None:
    """So many updates of every arm, in turns."""
    for _ in range(updates):
        for arm in arms:
            arm.update()


def resident(field: str) -> int:
    """Bytes this process holds (VmRSS), or the most it has held (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))
