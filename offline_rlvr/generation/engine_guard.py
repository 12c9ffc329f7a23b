"""A process of its own that ends a vLLM engine when the process that started it is gone.

vLLM's engine runs in processes that outlive a killed owner and go on holding the device's memory,
so that the same command, typed again, would find no room. Run as a script with the owner's and the
engine's process ids as arguments.
"""

import sys
from collections.abc import Sequence

import psutil

#: Seconds an engine has to end in an orderly way, before it is killed.
GRACE_S = 5.0


def family(pids: Sequence[int]) -> list[psutil.Process]:
    """These processes, as far as they exist, and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            parent = psutil.Process(pid)
            found.update({p.pid: p for p in (parent, *parent.children(recursive=True))})
        except psutil.NoSuchProcess:
            continue
    return list(found.values())


def end(processes: Sequence[psutil.Process]) -> None:
    """Ask these processes to end, kill those that do not; returns when they are gone."""
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=GRACE_S)


def main(owner: int, engine: Sequence[int]) -> None:
    """Wait for the owner's end, then end the engine."""
    processes = family(engine)
    try:
        psutil.Process(owner).wait()
    except psutil.NoSuchProcess:
        pass
    end(processes)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
