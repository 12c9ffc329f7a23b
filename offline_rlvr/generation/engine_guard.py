"""A process of its own that ends a vLLM engine when the process that started it is gone.

vLLM's engine runs in processes that outlive a killed owner and go on holding the device's memory,
so that the same command, typed again, would find no room. Run as a script, with the owner's process
id as its argument and a pipe from the owner as its input.
"""

import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

#: Seconds that processes have to end when asked, and then when killed.
GRACE_S = 5.0
POLL_S = 0.5


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
            time.sleep(0.05)


def main(owner: int) -> None:
    """Watch one engine of the owner, and end what is left of it.

    Until a line with the engine's process ids comes in, the engine is whatever the owner started
    after this process. The end of input, which is also the owner's own, is the engine's.
    """
    owners, born = family([owner])[:1], psutil.Process().create_time()
    engine: list[psutil.Process] = []
    starting = True
    while alive(owners):
        if starting:
            engine = [p for p in family([owner])[1:] if _born_after(p, born)]
        if select.select([sys.stdin], [], [], POLL_S)[0]:
            line = sys.stdin.readline()
            if not line:
                break
            engine, starting = family([int(pid) for pid in line.split()]), False
    end(engine)


def _born_after(process: psutil.Process, moment: float) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.pid != os.getpid() and process.create_time() >= moment
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]))
