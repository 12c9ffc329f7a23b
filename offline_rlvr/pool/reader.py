"""Read a pool: an index in memory, groups by id on demand, bounded memory."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.pool.blocks import Block, GroupArrays
from offline_rlvr.pool.decode import decode, row_group_sources, tables
from offline_rlvr.pool.index import STATUS_NAMES, PoolIndex, build_index, locate
from offline_rlvr.pool.snapshot import Check, Snapshot, open_part, take_snapshot

#: Decoded row groups kept for the next read.
CACHE_BYTES = 256 << 20


def grades_in_use(snapshot: Snapshot, without: str | None = None) -> str | None:
    """The verifier whose grades count unless one is named: the last to commit of those with all.

    A verifier counts from the commit that completes its grades of all groups, so a pool that is
    being graded again keeps its old rewards until the new ones are whole, not a part of either.
    Where no verifier has graded every group, the last to commit; None without any grades. A commit
    may name a verifier, which is then the last; a repair grades nothing and changes no order.

    Args:
        snapshot: The pool.
        without: A verifier to leave out of account.
    """
    rows: Counter[str | None] = Counter()
    for entry in snapshot.files:
        rows[entry.verifier_id] += entry.rows
    order: dict[str, None] = {}
    for commit, _ in snapshot.log:
        named = [] if commit.removes else [entry.verifier_id for entry in commit.files]
        for name in [*named, commit.verifier_in_use]:
            if name and name != without and rows[name]:
                # Taken out and put back, so that the order is that of the last commits.
                order.pop(name, None)
                order[name] = None
    complete = [name for name in order if rows[name] == rows[None]]
    return next(iter([*reversed(complete), *reversed(order)]), None)


class Pool:
    """A pool as committed at the moment of opening; needs no lock and holds no file open."""

    def __init__(self, snapshot: Snapshot, verifier_id: str | None, cache_bytes: int):
        self._snapshot = snapshot
        self.verifier_id = verifier_id
        self.index: PoolIndex = build_index(snapshot, verifier_id)
        self._files = [entry for entry in snapshot.files if entry.verifier_id is None]
        self._cache: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._budget = cache_bytes
        self._cached_bytes = 0

    @classmethod
    def open(
        cls,
        path: str | Path,
        verifier_id: str | None = None,
        *,
        check: Check = "hash",
        cache_bytes: int = CACHE_BYTES,
    ) -> Self:
        """Verify a pool and index it.

        Args:
            path: The pool's folder.
            verifier_id: Whose grades to use; by default `grades_in_use`.
            check: `hash` reads every committed file once, `size` only compares sizes. Rows are
                checked again when they are read, either way.
            cache_bytes: How much decoded data is kept between reads.

        Raises:
            ConfigError: No pool there, or no such verifier.
            DataError: Damaged or unsafe; names the file and, where it applies, the row.
            IncompatibleError: Written by a newer version.
        """
        snapshot = take_snapshot(Path(path), check)
        if verifier_id is None:
            verifier_id = grades_in_use(snapshot)
        elif verifier_id not in snapshot.verifier_ids:
            raise ConfigError(
                f"{path} has no grades of verifier {verifier_id!r}; "
                f"it has {snapshot.verifier_ids or 'none'}"
            )
        return cls(snapshot, verifier_id, cache_bytes)

    @property
    def path(self) -> Path:
        """The pool's folder."""
        return self._snapshot.root

    @property
    def identity(self) -> dict[str, Any]:
        """What the pool is: model, sampling, K, problem set."""
        return self._snapshot.identity

    @property
    def hash(self) -> str:
        """sha256 over identity and commits; changes when the pool grows or is graded again."""
        return self._snapshot.hash

    @property
    def commit(self) -> int:
        """Number of the last commit, 0 for an empty pool."""
        return self._snapshot.commit

    @property
    def bytes(self) -> int:
        """Size of all committed Parquet files."""
        return sum(entry.bytes for entry in self._snapshot.files)

    @property
    def drops(self) -> dict[str, int]:
        """Problems drawn but not sampled, by reason."""
        return self._snapshot.drops

    @property
    def verifier_ids(self) -> list[str]:
        """Verifiers with grades here, in order of their first file."""
        return self._snapshot.verifier_ids

    def verifier_in_use(self, without: str | None = None) -> str | None:
        """Whose grades count unless one is named, see `grades_in_use`."""
        return grades_in_use(self._snapshot, without)

    @property
    def group_size(self) -> int:
        """K."""
        return self._snapshot.group_size

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        return self._snapshot.vocab_size

    @property
    def cached_bytes(self) -> int:
        """Decoded bytes kept now: at most the budget, or one row group."""
        return self._cached_bytes

    def __len__(self) -> int:
        return len(self.index.group_ids)

    def positions(self, group_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Where groups are in the index's arrays.

        Raises:
            DataError: A group is not in the pool.
        """
        wanted = np.asarray(group_ids, np.int64)
        at, known = locate(self.index.group_ids, wanted)
        if not known.all():
            raise DataError(f"group {wanted[known.argmin()]} is not in {self.path}")
        return at

    def read(self, group_ids: Sequence[int] | np.ndarray) -> list[GroupArrays]:
        """Groups by id, in the order asked.

        Raises:
            DataError: A group is not in the pool, or a row group that holds one is damaged.
        """
        positions = self.positions(group_ids)
        index = self.index
        # Each row group is decoded once a call, however the ids are ordered.
        order = np.lexsort((index.row_groups[positions], index.files[positions]))
        found: dict[int, GroupArrays] = {}
        for i in order.tolist():
            at = int(positions[i])
            block = self._block(int(index.files[at]), int(index.row_groups[at]))
            statuses = [STATUS_NAMES[code] for code in index.statuses[at]]
            found[i] = block.group(int(index.rows[at]), index.rewards[at], statuses)
        return [found[i] for i in range(len(positions))]

    def blocks(self) -> Iterator[Block]:
        """Every row group of samples in turn, read from disk and checked, one in memory at a time.

        Raises:
            DataError: A row is damaged.
        """
        for entry in self._files:
            for source, table in tables(self._snapshot, entry):
                yield Block(source, table, self.group_size, self.vocab_size)

    def verify(self) -> None:
        """Read and check every row, the grades of every verifier included.

        Raises:
            DataError: A row is damaged; names file and row.
        """
        for _ in self.blocks():
            pass
        for verifier_id in self.verifier_ids:
            if verifier_id != self.verifier_id:  # whose grades were checked when they were indexed
                build_index(self._snapshot, verifier_id)

    def _block(self, file: int, row_group: int) -> Block:
        key = (file, row_group)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        with open_part(self.path, self._files[file]) as part:
            source = list(row_group_sources(part, self._files[file]))[row_group]
            table = decode(part, source)
        block = Block(source, table, self.group_size, self.vocab_size)
        self._cache[key] = block
        self._cached_bytes += block.nbytes
        while self._cached_bytes > self._budget and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.nbytes
        return block
