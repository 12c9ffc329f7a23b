"""Take damaged files out of a pool so that the rest can be used again.

A repair is one commit. It names the damaged Parquet files, and the grades files with rows of groups
whose samples are lost; what remains of those is written again. The next to open the pool for
writing moves the named files to `quarantine/`: killed at any instant and typed again, a repair
ends the same. pool.json and the commits cannot be repaired: they say what the pool is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from offline_rlvr.errors import DataError
from offline_rlvr.lock import WriterLock
from offline_rlvr.pool.blocks import Block
from offline_rlvr.pool.commits import FileEntry
from offline_rlvr.pool.committing import add_commit, write_part
from offline_rlvr.pool.decode import tables
from offline_rlvr.pool.index import part_group_ids
from offline_rlvr.pool.snapshot import LINKED, Snapshot, read_commits, verify_file
from offline_rlvr.pool.writer import PoolWriter


@dataclass(frozen=True)
class Damage:
    """What is wrong with a pool and what a repair leaves of it.

    Attributes:
        reasons: Damaged files, in commit order, each with what is wrong.
        removes: Paths that a repair takes out: the damaged files, and grades of lost groups.
        groups: Groups before.
        kept: Ids of the groups that remain, int64, ascending.
        ungraded: Verifier -> how many of the remaining groups it has (then) not graded.
    """

    reasons: dict[str, str]
    removes: list[str]
    groups: int
    kept: np.ndarray
    ungraded: dict[str, int]

    @property
    def lost(self) -> int:
        """Groups whose samples are damaged."""
        return self.groups - len(self.kept)


def inspect(path: Path) -> Damage:
    """Read every file of a pool and say which are damaged; changes nothing.

    Raises:
        ConfigError: There is no pool.
        DataError: pool.json or a commit is damaged, or a folder is a link: not to be repaired.
    """
    return _inspect(read_commits(path))


def repair(path: Path) -> Damage:
    """Take out what `inspect` finds; the files go to `quarantine/`, nothing is deleted.

    Returns:
        What was damaged; without reasons when the pool is whole.

    Raises:
        DataError: As `inspect`.
        BusyError: Somebody writes the pool.
        ResourceError: The folder cannot be written.
    """
    read_commits(path)  # before a lock is put where no pool is
    lock = WriterLock(path)
    try:
        snapshot = read_commits(path)
        damage = _inspect(snapshot)
        if damage.reasons:
            files = _rewritten_grades(snapshot, damage)
            add_commit(snapshot, files, removes=damage.removes)
    finally:
        lock.release()
    # Of an interrupted repair, too: opening sets the files aside, then the card is made anew.
    if snapshot.log and snapshot.log[-1].commit.removes:
        with PoolWriter.reopen(path) as writer:
            writer.finish()
    return damage


def _inspect(snapshot: Snapshot) -> Damage:
    reasons: dict[str, str] = {}
    whole: list[tuple[FileEntry, np.ndarray]] = []
    for entry in snapshot.files:
        _refuse_linked_folders(snapshot.root, entry)
        try:
            whole.append((entry, _read_whole(snapshot, entry)))
        except DataError as error:
            reasons[entry.path] = error.message
    none = [np.zeros(0, np.int64)]
    kept = np.sort(np.concatenate(none + [ids for e, ids in whole if e.verifier_id is None]))
    graded = dict.fromkeys(snapshot.verifier_ids, 0)
    orphans = set()
    for entry, ids in whole:
        if entry.verifier_id is not None:
            there = np.isin(ids, kept)
            graded[entry.verifier_id] += int(there.sum())
            orphans |= set() if there.all() else {entry.path}
    removed = orphans | reasons.keys()
    return Damage(
        reasons,
        [entry.path for entry in snapshot.files if entry.path in removed],
        sum(entry.rows for entry in snapshot.files if entry.verifier_id is None),
        kept,
        {name: len(kept) - count for name, count in graded.items() if count < len(kept)},
    )


def _read_whole(snapshot: Snapshot, entry: FileEntry) -> np.ndarray:
    """The group ids of a file, hash and every row checked."""
    verify_file(snapshot.root, entry, "hash")
    ids = part_group_ids(snapshot, entry)
    if entry.verifier_id is None:
        for source, table in tables(snapshot, entry):
            Block(source, table, snapshot.group_size, snapshot.vocab_size)
    return ids


def _rewritten_grades(snapshot: Snapshot, damage: Damage) -> list[FileEntry]:
    """One new file per verifier with what remains of its whole files that are taken out."""
    parts: dict[str, list[pa.Table]] = {}
    for entry in snapshot.files:
        if entry.verifier_id and entry.path in damage.removes and entry.path not in damage.reasons:
            rows = parts.setdefault(entry.verifier_id, [])
            rows += _rows_of(snapshot, entry, damage.kept)
    joined = {name: pa.concat_tables(rows) for name, rows in parts.items()}
    return [
        write_part(snapshot, f"grades/{name}", table.sort_by("group_id").combine_chunks())
        for name, table in joined.items()
        if table.num_rows
    ]


def _rows_of(snapshot: Snapshot, entry: FileEntry, kept: np.ndarray) -> Sequence[pa.Table]:
    return [
        table.filter(pa.array(np.isin(source.group_ids(table), kept)))
        for source, table in tables(snapshot, entry)
    ]


def _refuse_linked_folders(root: Path, entry: FileEntry) -> None:
    for folder in Path(entry.path).parents:
        if (root / folder).is_symlink() and folder != Path():
            raise DataError(f"{root / folder} is a symbolic link to a folder", hint=LINKED)
