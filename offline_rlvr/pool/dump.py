"""A file of somebody else's responses, read by row numbers: bigger than memory, rows in any order.

One pass finds which rows belong together and keeps a few numbers for each row; groups are then read
a few at a time. Of a Parquet file one row group is in memory.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.errors import ConfigError, DataError

#: Where a row stands ("FILE, line 3"), and its columns.
Placed = tuple[str, dict[str, Any]]
#: Rows decoded at a time while a Parquet file is indexed.
BATCH_ROWS = 1024
_INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True)
class DumpIndex:
    """Which rows belong together.

    Attributes:
        group_ids: Ascending.
        order: int64 [rows]: row numbers, group after group, in file order within a group.
        starts: int64 [groups + 1]: group i has order[starts[i] : starts[i + 1]].
    """

    group_ids: list[int]
    order: np.ndarray
    starts: np.ndarray

    def rows(self, group: int) -> list[int]:
        """Row numbers of the group at a position."""
        return self.order[self.starts[group] : self.starts[group + 1]].tolist()


class Dump(ABC):
    """One row per response; `columns` are those of the first row."""

    def __init__(self, path: Path):
        self.path = path
        self.columns = self._columns()

    @abstractmethod
    def _columns(self) -> list[str]: ...

    @abstractmethod
    def _scan(self, column: str) -> Iterator[tuple[str, Any]]:
        """Place and value of one column in every row, in order."""

    @abstractmethod
    def read(self, numbers: Sequence[int]) -> dict[int, Placed]:
        """Rows by number.

        Raises:
            DataError: A row cannot be decoded; names it.
        """

    def index(self, column: str) -> DumpIndex:
        """Rows with an equal value of `column` belong together.

        Group ids are the values where each is a whole number of at least 0 (as a number or as
        text), else 0, 1, 2, ... in the order of first appearance.

        Raises:
            DataError: A damaged row, or a value that is null.
        """
        groups: dict[bytes, int] = {}
        ids: list[int | None] = []
        of_row = array("q")
        for place, value in self._scan(column):
            if value is None:
                raise DataError(f"{place}: {column!r} is missing; rows are grouped by it")
            key = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()[:16]
            if key not in groups:
                groups[key] = len(groups)
                ids.append(_whole(value))
            of_row.append(groups[key])
        if not groups:
            raise DataError(f"{self.path} has no rows")
        named = None not in ids and len(set(ids)) == len(ids)
        numbers = ids if named else list(range(len(ids)))
        group_of_row = np.array(numbers, np.int64)[np.frombuffer(of_row, np.int64)]
        order = np.argsort(group_of_row, kind="stable")
        found, counts = np.unique(group_of_row, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(counts)])
        return DumpIndex(found.tolist(), order, starts)


def _whole(value: Any) -> int | None:
    """7 and "7" are group 7; "07" is a name."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        number = int(value)
        return number if str(number) == value and number < _INT64_MAX else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _INT64_MAX else None


class JsonLines(Dump):
    """One JSON object a line, UTF-8; empty lines are passed over."""

    def __init__(self, path: Path):
        self._offsets, self._lines = array("q"), array("q")
        super().__init__(path)

    def _columns(self) -> list[str]:
        for _, row in self._all():
            return list(row)
        raise DataError(f"{self.path} has no rows")

    def _all(self) -> Iterator[Placed]:
        self._offsets, self._lines = array("q"), array("q")
        with self.path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self._offsets.append(offset)
                    self._lines.append(number)
                    place = f"{self.path}, line {number}"
                    yield place, _object(place, line)
                offset += len(line)

    def _scan(self, column: str) -> Iterator[tuple[str, Any]]:
        for place, row in self._all():
            yield place, row.get(column)

    def read(self, numbers: Sequence[int]) -> dict[int, Placed]:
        """See `Dump.read`."""
        found: dict[int, Placed] = {}
        with self.path.open("rb") as file:
            for number in sorted(numbers):
                file.seek(self._offsets[number])
                place = f"{self.path}, line {self._lines[number]}"
                found[number] = (place, _object(place, file.readline()))
        return found


def _object(place: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        hint = None if line.endswith(b"\n") else "the last line may be torn: its writer was stopped"
        raise DataError(f"{place}: not JSON: {error}", hint=hint) from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: {type(row).__name__}; expected an object")
    return row


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return row


class ParquetRows(Dump):
    """A Parquet file."""

    def __init__(self, path: Path):
        self._cached: tuple[int, pa.Table] | None = None
        super().__init__(path)

    def _columns(self) -> list[str]:
        with self._open() as file:
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            return file.schema_arrow.names

    def _scan(self, column: str) -> Iterator[tuple[str, Any]]:
        number = 0
        with self._open() as file:
            try:
                for batch in file.iter_batches(BATCH_ROWS, columns=[column]):
                    for value in batch.column(0).to_pylist():
                        yield f"{self.path}, row {number}", value
                        number += 1
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(f"{self.path}, row {number} or later: damaged: {error}") from error

    def read(self, numbers: Sequence[int]) -> dict[int, Placed]:
        """See `Dump.read`."""
        found: dict[int, Placed] = {}
        for number in sorted(numbers):
            group = int(np.searchsorted(self._starts, number, "right")) - 1
            if self._cached is None or self._cached[0] != group:
                self._cached = (group, self._row_group(group))
            (row,) = self._cached[1].slice(number - int(self._starts[group]), 1).to_pylist()
            found[number] = (f"{self.path}, row {number}", row)
        return found

    def _row_group(self, group: int) -> pa.Table:
        with self._open() as file:
            try:
                return file.read_row_group(group)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(f"{self.path}, row group {group}: damaged: {error}") from error

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{self.path} is no whole Parquet file: {error}") from error


_READERS: dict[str, type[Dump]] = {".jsonl": JsonLines, ".parquet": ParquetRows}


def open_dump(path: Path) -> Dump:
    """The reader of a file, by its suffix.

    Raises:
        ConfigError: There is no such file, or its suffix is unknown.
        DataError: It is damaged or empty.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="check the path")
    if path.suffix not in _READERS:
        raise ConfigError(
            f"{path} has no known suffix; allowed: {', '.join(_READERS)}",
            hint="rename the file, or convert it",
        )
    return _READERS[path.suffix](path)
