"""Where the time and memory of updates go, phase by phase (`train --profile N`)."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

#: Every phase, in the order of an update, and what a user would call it.
MEANING = {
    "anchors": "the learner scores the coming window for its reference or old policy",
    "forward": "log-probs of the minibatch under the learner",
    "objective": "the loss from these log-probs",
    "backward": "gradients of the weights",
    "reduction": "gradients and sums of all processes added",
    "diagnostics": "drift, effective sample size, Gibbs weights and the response rows",
    "probe": "drift on groups that are never trained on",
    "optimizer": "gradient clipping and the step",
    "record": "ledger, metrics and loggers",
    "checkpoint": "weights and optimizer written to disk",
    "evaluation": "held-out problems answered and graded",
}


@dataclass
class Usage:
    """Of one phase: seconds in all, and the highest memory seen in it, bytes."""

    seconds: float = 0.0
    peak: int = 0


@dataclass
class Phases:
    """Measures named phases while `on`; costs one comparison when it is not.

    A phase inside another one counts for itself alone. On a GPU each phase waits for the device to
    finish, so times are true and a measured update is a little slower than others.

    Attributes:
        device: Whose memory is looked at: the GPU's, or this process's.
        on: Whether to measure.
        usage: By phase, since the start or `clear`.
    """

    device: torch.device
    on: bool = False
    usage: dict[str, Usage] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the block as `name`, one of `MEANING`."""
        if not self.on:
            yield
            return
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    @property
    def seconds(self) -> float:
        """Of all phases."""
        return sum(usage.seconds for usage in self.usage.values())

    def _switch(self) -> None:
        """Book what has passed since the last switch on the innermost open phase."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._open:
            usage = self.usage.setdefault(self._open[-1], Usage())
            usage.seconds += now - self._since
            usage.peak = max(usage.peak, peak_memory(self.device))
        self._since = time.perf_counter()
        reset_peak_memory(self.device)


def peak_memory(device: torch.device) -> int:
    """Highest memory since the last reset, bytes: allocated on the GPU, or resident in this
    process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def reset_peak_memory(device: torch.device) -> None:
    """Start `peak_memory` anew; where the system cannot, it stays the highest of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")  # Linux: forget the highest resident size
