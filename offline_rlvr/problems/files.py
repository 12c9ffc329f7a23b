"""Problems from a local JSONL, CSV or Parquet file; every damaged row is named, none is skipped."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.problems.rows import Columns, Row, problems_of
from offline_rlvr.records import Problem


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
        question: Column of the question; a path such as `prompt.0.content` for nested columns.
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
    rows = _READERS[file.suffix](file)
    return problems_of(str(file), file.stem, rows, Columns(question, answer, id), limit)


def _jsonl(file: Path) -> Iterator[Row]:
    # Bytes, so that one line of damaged UTF-8 is reported as that line.
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            # A number is kept as it is written: 0.10, 1e400 and 5000 digits survive.
            row = json.loads(line.decode("utf-8"), parse_float=str, parse_int=str)
        except (ValueError, RecursionError) as error:
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
