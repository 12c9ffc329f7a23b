"""One commit: its files first, each durable, then the JSON that makes them part of the pool."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.pool.commits import COMMIT_FOLDER, Commit, FileEntry, Logged, sha256
from offline_rlvr.pool.schema import SCHEMA_VERSION, encode
from offline_rlvr.pool.snapshot import Snapshot


def part_path(folder: str, number: int) -> str:
    """The file that commit `number` adds to `samples` or `grades/VERIFIER`."""
    return f"{folder}/part-{number:08d}.parquet"


def write_part(snapshot: Snapshot, folder: str, table: pa.Table) -> FileEntry:
    """Write a file for the next commit, its rows in ascending order of group id.

    Raises:
        ResourceError: The disk is full, read-only or failing.
    """
    path = part_path(folder, snapshot.commit + 1)
    data = encode(table)
    make_folder(snapshot.root / folder)
    write_file(snapshot.root / path, data, replace=True)
    ids = table.column("group_id")
    return FileEntry(
        path=path,
        sha256=sha256(data),
        bytes=len(data),
        rows=table.num_rows,
        first_group_id=ids[0].as_py(),
        last_group_id=ids[-1].as_py(),
    )


def add_commit(
    snapshot: Snapshot,
    files: Sequence[FileEntry] = (),
    *,
    drops: Mapping[str, int] | None = None,
    next_group_id: int | None = None,
    removes: Sequence[str] = (),
    verifier_in_use: str | None = None,
) -> int:
    """Publish the next commit and add it to `snapshot`; the caller holds the pool's lock.

    Args:
        snapshot: The pool as it is.
        files: Durable files, see `write_part`.
        drops, next_group_id, removes, verifier_in_use: See `Commit`; drawing goes on where it was
            unless told otherwise.

    Returns:
        The number of the commit.

    Raises:
        DataError: Another program wrote a commit of this number.
        ResourceError: The disk is full, read-only or failing.
    """
    number = snapshot.commit + 1
    commit = Commit(
        schema_version=SCHEMA_VERSION,
        commit=number,
        previous=snapshot.log[-1].digest if snapshot.log else snapshot.genesis,
        files=list(files),
        drops=dict(drops or {}),
        next_group_id=snapshot.next_group_id if next_group_id is None else next_group_id,
        removes=list(removes),
        verifier_in_use=verifier_in_use,
    )
    data = commit.sealed()
    write_file(snapshot.root / COMMIT_FOLDER / f"{number:08d}.json", data)
    snapshot.log.append(Logged(commit, sha256(data)))
    return number
