"""Problems from a local JSONL, CSV or Parquet file; every damaged row is named, none is skipped."""

import csv
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.records import Problem

#: Where a row stands, for messages ("line 3"), and its columns.
Row = tuple[str, dict[str, Any]]


def load(
    path: str,
    question: str = "question",
    answer: str = "answer",
    id: str = "id",
    limit: int | None = None,
) -> list[Problem]:
    """Read problems from `path`; its suffix (.jsonl, .csv, .parquet) decides the format.

    Args:
        path: The file.
        question: Column of the question.
        answer: Column of the gold answer; numbers become their exact text (7 -> "7", 7.0 -> "7.0").
        id: Column of the id. Where no row has it, ids are the file's stem and a running number from
            0.
        limit: Read at most so many problems.

    Raises:
        ConfigError: No such file, an unknown suffix, or a column that the file does not have.
        DataError: A damaged row, an empty question or answer, or an id that occurs twice; with file
            and row.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"there is no problem file {str(file)!r}")
    if file.suffix not in _READERS:
        raise ConfigError(
            f"{str(file)!r} ends in {file.suffix!r}; allowed: {', '.join(_READERS)}",
            hint="rename the file, or convert it",
        )
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be at least 1, or null for all")
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    numbered: bool | None = None
    for where, row in _READERS[file.suffix](file):
        if limit is not None and len(problems) == limit:
            break
        if numbered is None:
            _check_columns(file, row, question, answer, id)
            numbered = id not in row
        name = f"{file.stem}-{len(problems)}" if numbered else _text(file, where, row, id)
        if name in seen:
            raise DataError(f"{file}, {where}: id {name!r} is already that of {seen[name]}")
        seen[name] = where
        problems.append(
            Problem(name, _text(file, where, row, question), _text(file, where, row, answer))
        )
    if not problems:
        raise DataError(f"{file} holds no problems")
    return problems


def _check_columns(file: Path, row: dict[str, Any], question: str, answer: str, id: str) -> None:
    """A column missing in the first row is a wrong setting; missing in a later row it is damage."""
    # A missing id column is fine by default, but a misspelled one must not pass for it.
    wanted = [question, answer] + ([id] if id != "id" else [])
    if missing := [column for column in wanted if column not in row]:
        raise ConfigError(
            f"{file} has no column {missing[0]!r}; it has: {', '.join(map(repr, row))}",
            hint="name the columns with question=, answer= and id=",
        )


def _text(file: Path, where: str, row: dict[str, Any], column: str) -> str:
    """A cell as exact text."""
    if column not in row:
        raise DataError(f"{file}, {where}: there is no {column!r}")
    value = row[column]
    # bool is an int in Python, but True is nobody's number.
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise DataError(
            f"{file}, {where}: {column!r} is {value!r} ({type(value).__name__}); "
            "expected text or a number"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{file}, {where}: {column!r} is {value}; expected text or a finite number")
    text = str(value)
    if not text.strip():
        raise DataError(f"{file}, {where}: {column!r} is empty")
    return text


def _jsonl(file: Path) -> Iterator[Row]:
    # Bytes, so that one line of damaged UTF-8 is reported as that line.
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            # A number is kept as it is written: 0.10, 1e400 and 5000 digits survive.
            row = json.loads(line.decode("utf-8"), parse_float=str, parse_int=str)
        except ValueError as error:
            raise DataError(f"{file}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{file}, line {number}: {type(row).__name__}; expected an object")
        yield f"line {number}", row


def _csv(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, strict=True)
        try:
            for row in reader:
                where = f"line {reader.line_num}"
                if None in row or None in row.values():
                    expected = len(reader.fieldnames or ())
                    raise DataError(f"{file}, {where}: expected {expected} cells, as in the header")
                yield where, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{file}, line {reader.line_num} or the next: not CSV in UTF-8: {error}"
            ) from error


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches():
                for row in batch.to_pylist():
                    yield f"row {number}", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}, row {number} or later: damaged Parquet: {error}") from error


_READERS = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
