"""Files that survive a crash: write < fsync < rename < fsync(directory).

What the disk refuses becomes one kind of error that says what to do.

A temporary sibling (`.tmp-NAME`) is all that a kill can leave behind; whoever opens the folder for
writing next removes it.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from offline_rlvr.errors import DataError, ResourceError

TMP_PREFIX = ".tmp-"
#: Bytes per write call.
WRITE_CHUNK = 8 << 20

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
#: What a file system without hard links (FAT, many network drives) answers to link().
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a ResourceError that names `path` and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            message, hint = f"no space left while writing {path} ({reason})", "free some space"
        elif error.errno in _READ_ONLY:
            message = f"cannot write {path} ({reason})"
            hint = "make the folder writable or choose another one"
        else:
            message, hint = f"writing {path} failed ({reason})", "check the disk"
        hint += ", then type the same command again; everything committed so far is kept"
        raise ResourceError(message, hint=hint) from error


def write_file(path: Path, data: bytes | memoryview, *, replace: bool = False) -> None:
    """Create `path` with `data`: once this returns, no crash can lose it.

    Args:
        path: The file to make; its folder exists.
        data: The whole content.
        replace: Atomically replace an existing file; otherwise an existing file is an error.

    Raises:
        DataError: The file exists and `replace` is off.
        ResourceError: The disk is full, read-only or failing. Nothing visible has changed, unless
            the folder's own fsync failed: then the new file may or may not survive a crash.
    """
    temporary = path.with_name(TMP_PREFIX + path.name)
    with writing(path):
        try:
            _write_synced(temporary, memoryview(data), os.O_TRUNC)
            _install(temporary, path, replace)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def append_file(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file, made when missing; its name is durable after `sync_folder`.

    Raises:
        ResourceError: As `write_file`; a part of `data` may stand at the end of the file.
    """
    with writing(path):
        _write_synced(path, memoryview(data), os.O_APPEND)


@contextmanager
def published_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """`write_file` for content that is made piece by piece: the block fills a temporary sibling.

    When the block ends well the sibling becomes `path`; when it does not, it is removed.

    Raises:
        DataError: `path` exists and `replace` is off.
        ResourceError: As `write_file`, also for what the block itself writes.
    """
    temporary = path.with_name(TMP_PREFIX + path.name)
    try:
        with writing(path):
            temporary.unlink(missing_ok=True)
            yield temporary
            _sync(temporary)
            _install(temporary, path, replace)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def publish_folder(path: Path, fill: Callable[[Path], None], *, resume: bool = False) -> None:
    """Make a folder with its content appear whole or not at all.

    Args:
        path: The folder to make; its parent exists.
        fill: Writes the content into the folder it is given, a temporary sibling.
        resume: Give `fill` what an interrupted attempt left, for work that goes on from there.

    Raises:
        DataError: `path` exists.
        ResourceError: The system refused a write; there is no `path`.
    """
    temporary = path.with_name(TMP_PREFIX + path.name)
    if path.exists():
        raise DataError(f"{path} exists already")
    try:
        with writing(path):
            if not resume:
                shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(exist_ok=resume)
            fill(temporary)
            for entry in sorted(temporary.rglob("*")):
                _sync(entry)
            _sync(temporary)
            os.rename(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        if not resume:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def make_folder(path: Path) -> None:
    """Create a folder and its parents, each entry durable before the next is made."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with writing(path):
        try:
            os.mkdir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
        sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder; a kill on the way leaves the whole folder or a temporary sibling."""
    temporary = path.with_name(TMP_PREFIX + path.name)
    with writing(path):
        os.rename(path, temporary)
        shutil.rmtree(temporary)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writers left in a folder."""
    for path in folder.glob(f"{TMP_PREFIX}*"):
        with writing(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def file_sha256(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_synced(path: Path, data: memoryview, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | mode
    descriptor = os.open(path, flags, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data[:WRITE_CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _install(temporary: Path, path: Path, replace: bool) -> None:
    """Give a synced file its name, durably."""
    if replace:
        os.replace(temporary, path)
    else:
        _publish(temporary, path)
    sync_folder(path.parent)


def _publish(temporary: Path, path: Path) -> None:
    """Give the file its name, unless that name is taken (link refuses that, rename would not)."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise DataError(
            f"{path} exists already; another program wrote into this folder",
            hint="end that program, then type the same command again",
        ) from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # The caller holds the folder's lock, so nobody can take the name between the test and the
        # rename.
        if os.path.lexists(path):
            raise DataError(f"{path} exists already") from None
        os.rename(temporary, path)
    else:
        os.unlink(temporary)
