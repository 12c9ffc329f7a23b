"""One writer at a time: a lock that dies with its process and says who holds it."""

import json
import os
import socket
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from offline_rlvr.durable import writing
from offline_rlvr.errors import BusyError

LOCK_NAME = ".lock"
#: Beside the lock, because some versions of the lock library empty the lock file itself.
OWNER_NAME = ".lock-owner.json"
#: Clocks of processes and of files may differ by so much.
CLOCK_S = 2.0


class WriterLock:
    """The write lock of a folder, held from construction to `release`.

    The kernel drops the lock when its process ends, however it ends: a lock file left behind blocks
    nobody.

    Raises:
        BusyError: Another writer holds it; names its process id and host.
        ResourceError: The folder cannot be written.
    """

    def __init__(self, folder: Path):
        self._owner = folder / OWNER_NAME
        self._lock = FileLock(str(folder / LOCK_NAME), blocking=False)
        with writing(folder):
            try:
                self._lock.acquire()
            except Timeout:
                raise BusyError(
                    f"{folder} is being written by {self._holder()}",
                    hint="wait for it to end, or end it, then type the same command again",
                ) from None
        with writing(self._owner):
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            # A new file, never one that a link of this name points to.
            self._owner.unlink(missing_ok=True)
            with self._owner.open("x", encoding="utf-8") as file:
                json.dump(owner, file)

    def release(self) -> None:
        """Let the next writer in; harmless when already released."""
        if self._lock.is_locked:
            self._owner.unlink(missing_ok=True)
        self._lock.release()

    def _holder(self) -> str:
        owner = _owner_of(self._owner)
        # Without a name it has the lock but has not written it yet.
        return "another process" if owner is None else f"process {owner[0]} on host {owner[1]}"


def writer_of(folder: Path) -> str | None:
    """The writer at work in a folder, told without touching its lock; None when there is none.

    On another host nothing can be known of a process, so the last writer there counts as at work.
    """
    path = folder / OWNER_NAME
    owner = _owner_of(path)
    if owner is None:
        return None
    pid, host = owner
    if host == socket.gethostname():
        try:
            # A process that is younger than the file is another program under a used number.
            if psutil.Process(pid).create_time() > path.stat().st_mtime + CLOCK_S:
                return None
        except psutil.AccessDenied:
            pass  # it lives, under another user
        except (psutil.NoSuchProcess, ValueError, OSError):
            return None
    return f"process {pid} on host {host}"


def _owner_of(path: Path) -> tuple[int, str] | None:
    if not path.is_file():  # reading a pipe would never end
        return None
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return int(owner["pid"]), str(owner["host"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
