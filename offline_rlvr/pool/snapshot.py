"""What a pool's folder holds at one moment: identity, commits and files, verified."""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.durable import file_sha256
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.pool.commits import FileEntry, Logged, read_log, read_sealed, sha256
from offline_rlvr.pool.schema import GRADES, SAMPLES, SCHEMA_VERSION, check_schema

IDENTITY_NAME = "pool.json"
Check = Literal["size", "hash"]
#: What to do about a damaged Parquet file.
REPAIR = "restore it from a copy of the pool, or see what is lost: offline-rlvr pool repair POOL"
LINKED = "copy the pool with its links resolved: cp -rL"


@dataclass(frozen=True)
class Snapshot:
    """A verified view of a pool's folder.

    Attributes:
        root: The folder.
        identity: What the pool is, as written once by its builder.
        genesis: sha256 of pool.json.
        log: Commits in order.
    """

    root: Path
    identity: dict[str, Any]
    genesis: str
    log: list[Logged]

    @property
    def files(self) -> list[FileEntry]:
        """All files of the pool, in commit order; those that a later commit removes left out."""
        removed = self.removed
        return [
            entry
            for logged in self.log
            for entry in logged.commit.files
            if entry.path not in removed
        ]

    @property
    def removed(self) -> set[str]:
        """Paths that were added and removed again."""
        return {path for logged in self.log for path in logged.commit.removes}

    @property
    def commit(self) -> int:
        """Number of the last commit, 0 for an empty pool."""
        return len(self.log)

    @property
    def next_group_id(self) -> int:
        """Where drawing continues: past every problem drawn so far."""
        return self.log[-1].commit.next_group_id if self.log else 0

    @property
    def verifier_ids(self) -> list[str]:
        """Verifiers with grades here, in order of their first file."""
        return list(dict.fromkeys(e.verifier_id for e in self.files if e.verifier_id))

    @property
    def group_size(self) -> int:
        """K."""
        return self.identity["group_size"]

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self.identity["vocab_size"]

    @property
    def hash(self) -> str:
        """sha256 over identity and commits: another content has another hash."""
        return sha256("\n".join([self.genesis, *(c.digest for c in self.log)]).encode())

    @property
    def drops(self) -> dict[str, int]:
        """Problems drawn but not sampled, by reason, over all commits."""
        total: dict[str, int] = {}
        for commit, _ in self.log:
            for reason, count in commit.drops.items():
                total[reason] = total.get(reason, 0) + count
        return total


def take_snapshot(root: Path, check: Check = "hash") -> Snapshot:
    """Verify a pool's identity and commits, and that every committed file is there and whole.

    Args:
        root: The pool's folder.
        check: `hash` reads every file once; `size` only asks for their sizes.

    Raises:
        ConfigError: There is no such folder, or it is not a pool.
        DataError: Something is missing, damaged or unsafe; names the file.
        IncompatibleError: Written by a newer version.
    """
    if check not in ("size", "hash"):
        raise ConfigError(f"check is {check!r}; allowed: 'size', 'hash'")
    snapshot = read_commits(root)
    for entry in snapshot.files:
        verify_file(root, entry, check)
    return snapshot


def read_commits(root: Path) -> Snapshot:
    """A pool's identity and commits, its Parquet files not looked at.

    Raises:
        ConfigError: There is no such folder, or it is not a pool.
        DataError: pool.json or a commit is missing or damaged.
        IncompatibleError: Written by a newer version.
    """
    if not root.is_dir():
        raise ConfigError(
            f"there is no pool at {root}", hint="offline-rlvr pool build CONFIG, or check the path"
        )
    if not (root / IDENTITY_NAME).exists() and not (root / "commits").exists():
        raise ConfigError(f"{root} is not a pool: it has no {IDENTITY_NAME}", hint="check the path")
    identity, genesis = read_identity(root)
    return Snapshot(root, identity, genesis, read_log(root, genesis))


def read_identity(root: Path) -> tuple[dict[str, Any], str]:
    """The identity in pool.json, and the file's sha256."""
    path = root / IDENTITY_NAME
    body, genesis = read_sealed(path)
    identity = body.get("identity")
    if body.keys() != {"schema_version", "identity"} or not isinstance(identity, dict):
        raise DataError(f"{path} must hold schema_version and identity, and nothing else")
    if body["schema_version"] != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version {body['schema_version']!r} is unknown")
    check_identity(identity, str(path))
    return identity, genesis


def check_identity(identity: dict[str, Any], where: str) -> None:
    """Refuse an identity without a usable group_size and vocab_size."""
    for key, least in (("group_size", 2), ("vocab_size", 1)):
        value = identity.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"{where}: {key} is {value!r}; it must be an integer >= {least}")


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Turn any failure to decode `file` into a DataError that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file} is damaged: {reason}", hint=REPAIR) from error


@contextmanager
def open_part(root: Path, entry: FileEntry) -> Iterator[pq.ParquetFile]:
    """A committed Parquet file, its columns and number of rows checked."""
    with reading(str(root / entry.path)):
        part = pq.ParquetFile(root / entry.path, page_checksum_verification=True)
    with part:
        with reading(entry.path):
            found = part.schema_arrow
        check_schema(found, SAMPLES if entry.verifier_id is None else GRADES, entry.path)
        if part.metadata.num_rows != entry.rows:
            raise DataError(
                f"{entry.path} has {part.metadata.num_rows} rows; its commit says {entry.rows}"
            )
        yield part


def verify_file(root: Path, entry: FileEntry, check: Check) -> None:
    """Refuse a file that is not there, not a file, or not the one its commit names.

    Raises:
        DataError: Says which file and why.
    """
    path = root
    for name in entry.path.split("/"):
        path = path / name
        if path.is_symlink():
            raise DataError(f"{path} is a symbolic link; a pool holds real files only", hint=LINKED)
    try:
        status = path.stat()
    except OSError:
        raise DataError(f"{path} is missing; commits name it", hint=REPAIR) from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path} is not a regular file", hint=REPAIR)
    if status.st_size != entry.bytes:
        raise DataError(
            f"{path} is damaged: {status.st_size} bytes; its commit says {entry.bytes}", hint=REPAIR
        )
    if check == "hash":
        with reading(str(path)):
            digest = file_sha256(path)
        if digest != entry.sha256:
            raise DataError(
                f"{path} is damaged: its sha256 is not what its commit says", hint=REPAIR
            )
