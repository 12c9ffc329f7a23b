"""One writer at a time: a lock that dies with its process and says who holds it."""

import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from offline_rlvr.durable import writing
from offline_rlvr.errors import BusyError

LOCK_NAME = ".lock"
#: Beside the lock, because some versions of the lock library empty the lock file itself.
OWNER_NAME = ".lock-owner.json"


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
            self._owner.write_text(json.dumps(owner), encoding="utf-8")

    def release(self) -> None:
        """Let the next writer in; harmless when already released."""
        self._lock.release()

    def _holder(self) -> str:
        try:
            owner = json.loads(self._owner.read_text(encoding="utf-8"))
            return f"process {int(owner['pid'])} on host {owner['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            # It has the lock but has not written its name yet.
            return "another process"
