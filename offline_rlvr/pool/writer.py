"""Grow a pool by atomic commits, one writer at a time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.lock import WriterLock
from offline_rlvr.pool.card import CARD_NAME, render
from offline_rlvr.pool.committing import add_commit, write_part
from offline_rlvr.pool.index import group_ids_of, locate
from offline_rlvr.pool.opening import check_verifier_id, plain_identity, prepare, refuse_foreign
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.rows import grades_table, samples_table
from offline_rlvr.pool.snapshot import Check, Snapshot, take_snapshot
from offline_rlvr.pool.summary import funnel
from offline_rlvr.records import Group, Verdict


class PoolWriter:
    """The one writer of a pool. Use as a context manager; holds the pool's lock until closed.

    Make one with `create_or_open`. Whatever ends the process, the next writer finds every commit
    that `append` returned from, and nothing of one it did not.
    """

    def __init__(self, path: Path, lock: WriterLock, snapshot: Snapshot):
        self.path = path
        self._lock = lock
        self._snapshot = snapshot
        self._failed = False
        self._open = True
        self._ids = group_ids_of(snapshot, None)
        self._graded: dict[str, set[int]] = {}

    @classmethod
    def create_or_open(
        cls, path: str | Path, identity: Mapping[str, Any], *, check: Check = "hash"
    ) -> Self:
        """Make a pool, or continue one that has the same identity.

        Args:
            path: The pool's folder; made when missing, and otherwise a pool or empty.
            identity: Plain JSON values; `group_size` (K) and `vocab_size` are required. The entry
                `versions` is recorded but not compared.
            check: How committed files are verified, see `take_snapshot`.

        Raises:
            BusyError: Another writer is at work.
            IncompatibleError: The pool has another identity; lists each difference.
            ConfigError: The folder holds something else.
            DataError: The pool is damaged, or the identity is unusable.
            ResourceError: The folder cannot be written.
        """
        path = Path(path)
        plain = plain_identity(identity)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file; a pool is a folder", hint="choose another path")
        make_folder(path)
        refuse_foreign(path)
        lock = WriterLock(path)
        try:
            return cls(path, lock, prepare(path, plain, check))
        except BaseException:
            lock.release()
            raise

    @classmethod
    def reopen(cls, path: str | Path, *, check: Check = "hash") -> Self:
        """Continue the pool at `path` as what it is: for work that needs no job config.

        Raises:
            ConfigError: There is no pool; nothing is made.
            OfflineRlvrError: See `create_or_open`.
        """
        return cls.create_or_open(path, take_snapshot(Path(path), "size").identity, check=check)

    @property
    def committed_group_ids(self) -> np.ndarray:
        """Ids of all stored groups, sorted, int64."""
        return self._ids

    @property
    def next_group_id(self) -> int:
        """Where drawing continues: past every problem stored or dropped so far."""
        return self._snapshot.next_group_id

    @property
    def drops(self) -> dict[str, int]:
        """Problems drawn but not sampled, by reason, over all commits."""
        return self._snapshot.drops

    @property
    def commit(self) -> int:
        """Number of the last commit, 0 for an empty pool."""
        return self._snapshot.commit

    def append(
        self,
        groups: Sequence[Group],
        verifier_id: str,
        drops: Mapping[str, int] | None = None,
        *,
        next_group_id: int | None = None,
    ) -> int:
        """Commit groups with their grades: all of them or, after a crash, none.

        Args:
            groups: New groups, in any order; may be empty when everything drawn was dropped.
            verifier_id: Names the grades' folder: the verifier with its version and settings.
            drops: Problems drawn since the last commit but not sampled, by reason.
            next_group_id: Where drawing continues; by default after the last of `groups`.

        Returns:
            The number of the commit.

        Raises:
            DataError: A value that must not reach a pool; names group and response. Nothing was
                written.
            ResourceError: The disk is full, read-only or failing. Earlier commits are intact.
        """
        self._ready()
        check_verifier_id(verifier_id)
        ordered = sorted(groups, key=lambda group: group.group_id)
        ids = np.array([group.group_id for group in ordered], np.int64)
        self._refuse_repeated(ids)
        counts = dict(drops or {})
        if any(count < 0 for count in counts.values()):
            raise DataError(f"drops hold a negative count: {counts}")
        after = max([self.next_group_id, *(int(i) + 1 for i in ids[-1:])])
        if next_group_id is not None and next_group_id < after:
            raise DataError(f"next_group_id is {next_group_id}; it must be at least {after}")
        tables: dict[str, pa.Table] = {}
        if ordered:
            identity = self._snapshot
            tables["samples"] = samples_table(ordered, identity.group_size, identity.vocab_size)
            verdicts = {group.group_id: group.verdicts for group in ordered}
            tables[f"grades/{verifier_id}"] = grades_table(verdicts, identity.group_size)
        number = self._commit(tables, drops=counts, next_group_id=next_group_id or after)
        self._ids = np.sort(np.concatenate([self._ids, ids]))
        if verifier_id in self._graded:
            self._graded[verifier_id].update(ids.tolist())
        return number

    def append_grades(self, verifier_id: str, verdicts: Mapping[int, Sequence[Verdict]]) -> int:
        """Commit the verdicts of another verifier on stored groups (group id -> K verdicts).

        Raises:
            DataError: A group is not stored or has been graded by this verifier. Nothing was
                written.
        """
        self._ready()
        check_verifier_id(verifier_id)
        if not verdicts:
            raise DataError("no verdicts were given")
        known = set(self._ids.tolist())
        graded = self.graded_group_ids(verifier_id)
        for group_id in sorted(verdicts):
            if group_id not in known:
                raise DataError(f"group {group_id} is not in {self.path}")
            if group_id in graded:
                raise DataError(f"group {group_id} has been graded by {verifier_id!r} already")
        table = grades_table(verdicts, self._snapshot.group_size)
        number = self._commit({f"grades/{verifier_id}": table})
        self._graded[verifier_id] = graded | set(verdicts)
        return number

    def use_grades(self, verifier_id: str) -> int:
        """Commit that a verifier's grades of all groups count again, as if completed just now.

        Raises:
            DataError: It has not graded every group.
        """
        self._ready()
        missing = len(self._ids) - len(self.graded_group_ids(verifier_id))
        if missing or not len(self._ids):
            raise DataError(f"{verifier_id!r} has not graded {missing} groups of {self.path}")
        return self._commit({}, verifier_in_use=verifier_id)

    def graded_group_ids(self, verifier_id: str) -> set[int]:
        """Ids of the groups this verifier has graded."""
        if verifier_id not in self._graded:
            self._graded[verifier_id] = set(group_ids_of(self._snapshot, verifier_id).tolist())
        return self._graded[verifier_id]

    def finish(self, card_extra: Mapping[str, Any] | None = None) -> Path:
        """Write the pool's card (README.md) with its funnel; again after the pool has grown."""
        self._ready()
        pool = Pool.open(self.path, check="size")
        card = self.path / CARD_NAME
        write_file(card, render(pool, funnel(pool), card_extra).encode(), replace=True)
        return card

    def close(self) -> None:
        """Let the next writer in."""
        self._open = False
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> None:
        if not self._open:
            raise ConfigError(f"the writer of {self.path} is closed")
        if self._failed:
            raise ResourceError(
                f"an earlier write to {self.path} failed", hint="open the pool for writing again"
            )

    def _refuse_repeated(self, ids: np.ndarray) -> None:
        repeated = ids[:-1][ids[1:] == ids[:-1]].tolist() + ids[locate(self._ids, ids)[1]].tolist()
        if repeated:
            raise DataError(f"group {repeated[0]} is in {self.path} already, or given twice")

    def _commit(self, tables: Mapping[str, pa.Table], **entries: Any) -> int:
        # From the first byte on, a failure leaves files behind that only reopening cleans up.
        self._failed = True
        files = [write_part(self._snapshot, folder, table) for folder, table in tables.items()]
        number = add_commit(self._snapshot, files, **entries)
        self._failed = False
        return number
