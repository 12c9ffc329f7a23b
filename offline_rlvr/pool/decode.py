"""Row groups of committed files as checked columns; every complaint names file and row."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.errors import DataError
from offline_rlvr.pool.commits import FileEntry
from offline_rlvr.pool.snapshot import Snapshot, open_part, reading


@dataclass(frozen=True)
class Source:
    """Where the rows of a row group came from."""

    entry: FileEntry
    row_group: int
    first_row: int

    def row(self, row: int) -> str:
        """Name a row of the row group by its file and its place there."""
        return f"{self.entry.path}, row {self.first_row + int(row)}"

    def column(self, table: pa.Table, name: str) -> pa.Array:
        """A column as one array without nulls."""
        column = table.column(name)
        if column.num_chunks != 1:
            raise DataError(f"{self.row(0)}: a row group too large to be one of ours")
        array = column.chunk(0)
        if array.null_count:
            raise DataError(f"{self.row(first_null(array))}: {name} is null")
        return array

    def numbers(self, table: pa.Table, name: str) -> np.ndarray:
        """A plain column of numbers."""
        return self.column(table, name).to_numpy()

    def group_ids(self, table: pa.Table) -> np.ndarray:
        """The group ids, inside the range that the commit names."""
        ids = self.numbers(table, "group_id")
        first, last = self.entry.first_group_id, self.entry.last_group_id
        outside = (ids < first) | (ids > last)
        if outside.any():
            row = int(outside.argmax())
            raise DataError(
                f"{self.row(row)}: group {ids[row]}, but the commit says {first} to {last}"
            )
        return ids

    def lists(self, table: pa.Table, name: str, k: int, *, nulls: bool = False) -> pa.Array:
        """The values of a column of lists that all have length K, row after row."""
        array = self.column(table, name)
        sizes = np.diff(array.offsets.to_numpy())
        if (sizes != k).any():
            row = int((sizes != k).argmax())
            raise DataError(
                f"{self.row(row)}: {name} has {sizes[row]} entries; this pool has K = {k} responses"
            )
        values = array.flatten()
        if values.null_count and not nulls:
            row, response = divmod(first_null(values), k)
            raise DataError(f"{self.row(row)}, response {response}: {name} is null")
        return values


def first_null(array: pa.Array) -> int:
    """Position of the first null of an array that has one."""
    return int(array.is_null().to_numpy(zero_copy_only=False).argmax())


def row_group_sources(part: pq.ParquetFile, entry: FileEntry) -> Iterator[Source]:
    """The row groups of an open file."""
    first = 0
    for number in range(part.num_row_groups):
        yield Source(entry, number, first)
        first += part.metadata.row_group(number).num_rows


def decode(part: pq.ParquetFile, source: Source, names: list[str] | None = None) -> pa.Table:
    """A row group in memory, every offset and every text validated."""
    with reading(source.entry.path):
        table = part.read_row_group(source.row_group, columns=names, use_threads=False)
        table.validate(full=True)
    return table


def tables(
    snapshot: Snapshot, entry: FileEntry, names: list[str] | None = None
) -> Iterator[tuple[Source, pa.Table]]:
    """Each row group of a file, one in memory at a time."""
    with open_part(snapshot.root, entry) as part:
        for source in row_group_sources(part, entry):
            yield source, decode(part, source, names)
