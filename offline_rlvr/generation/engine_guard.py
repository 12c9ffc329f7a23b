"""A process of its own that ends a vLLM engine when the process that started it is gone.

vLLM's engine runs in processes that outlive a killed owner and go on holding the device's memory,
so that the same command, typed again, would find no room. Run as a script with the owner's and the
engine's process ids as arguments.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

#: Seconds that processes have to end when asked, and then when killed.
GRACE_S = 5.0
POLL_S = 0.2


def family(pids: Sequence[int]) -> list[psutil.Process]:
    """These processes, as far as they exist, and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            found.update({p.pid: p for p in (parent, *parent.children(recursive=True))})
    return list(found.values())


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie, which only waits to be counted by its parent, does not."""
    running = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def end(processes: Sequence[psutil.Process]) -> None:
    """Ask these processes to end, kill those that do not; returns when they are gone."""
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive(processes):
            with suppress(psutil.NoSuchProcess):
                signal(process)
        deadline = time.monotonic() + GRACE_S
        while alive(processes) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def main(owner: int, engine: Sequence[int]) -> None:
    """Wait for the owner's end, then end the engine."""
    owners, processes = family([owner])[:1], family(engine)
    while alive(owners):
        time.sleep(POLL_S)
    end(processes)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
