"""Progress of long work: a bar with ETA on a terminal, a plain line now and then elsewhere."""

import sys
import time
from types import TracebackType

from offline_rlvr.amounts import duration

#: Seconds between plain lines: rare enough for a log file, often enough to see life.
PLAIN_INTERVAL_S = 15.0


class Progress:
    """Counts towards a total; use as a context manager.

    Args:
        label: What is being done, e.g. `sampling`.
        total: How much there is to do.
        unit: What is counted, e.g. `groups`.
    """

    def __init__(self, label: str, total: int, unit: str):
        self.label, self.total, self.unit = label, total, unit
        self.done = self._told = self._before = 0
        self._started = time.monotonic()
        self._said = self._started
        self._bar = None
        self._task = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self.unit),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, note="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and self.done and self.done != self._told:
            self._say("")

    def restart(self) -> None:
        """Start the clock again, so that what came before does not count in the ETA."""
        self._started = self._said = time.monotonic()
        self._before = self.done
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, completed=self.done)

    def update(self, done: int, note: str = "") -> None:
        """Set how much is done (absolute), with an optional short note."""
        self.done = done
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=min(done, self.total), note=note)
        elif time.monotonic() - self._said >= PLAIN_INTERVAL_S:
            self._say(note)

    def _say(self, note: str) -> None:
        self._said, self._told = time.monotonic(), self.done
        spent = self._said - self._started
        fresh = self.done - self._before
        left = spent * (self.total - self.done) / fresh if fresh else float("nan")
        running = fresh and self.done < self.total
        eta = f", about {duration(left)} left" if running else f" in {duration(spent)}"
        tail = f"  {note}" if note else ""
        print(f"{self.label}: {self.done}/{self.total} {self.unit}{eta}{tail}", file=sys.stderr)
