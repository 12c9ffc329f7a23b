"""Files and folders that appear whole or not at all: write, fsync, rename, fsync the parent.

Everything that later work depends on (commits, plans, anchors, checkpoints, evaluations) goes
through here.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from offline_rlvr.errors import ResourceError

#: Suffix of work in progress; whatever carries it was never published and may be removed.
PARTIAL = ".partial"


def replace_file(path: Path, data: bytes) -> None:
    """Write `path` atomically and durably; an existing file is replaced only by a whole one.

    Raises:
        ResourceError: Disk full, read-only or another system error; `path` is as it was.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, path)
        fsync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def publish_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a temporary sibling folder, make it durable, rename it to `path` (not there before).

    Args:
        path: The final folder.
        fill: Writes the content into the folder it is given.

    Raises:
        ResourceError: A system error; no `path` exists then.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        fill(partial)
        for file in sorted(partial.rglob("*")):
            if file.is_dir():
                fsync_folder(file)
            else:
                _fsync(file)
        fsync_folder(partial)
        os.rename(partial, path)
        fsync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise cannot_write(path, error) from error


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    _fsync(path)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(path: Path, error: OSError) -> ResourceError:
    """The error a user should see when the system refused a write."""
    reason = error.strerror or str(error)
    hint = "check permissions of the folder, then type the same command again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "free some disk space, then type the same command again; what was committed is kept"
    return ResourceError(f"cannot write {path}: {reason}", hint=hint)
