"""Append-only JSON lines (`ledger.jsonl`, `metrics.jsonl`) that survive a kill at any instant.

A line is written whole, flushed and fsynced before the next update starts. A torn last line, the
trace of a crash in the middle of a write, was never acknowledged and is dropped when the journal is
reopened.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offline_rlvr.durable import append_file, sync_folder, write_file, writing
from offline_rlvr.errors import DataError

Row = dict[str, Any]


class Journal:
    """One JSON object per line, each with an `update` number.

    Args:
        path: The file; made when missing.
    """

    def __init__(self, path: Path):
        self.path = path
        self._named = False

    def append(self, row: Row) -> None:
        """Write one row durably. Non-finite numbers are stored as null: JSON has no NaN."""
        line = json.dumps(_finite(row), allow_nan=False) + "\n"
        append_file(self.path, line.encode())
        if not self._named:
            with writing(self.path):
                sync_folder(self.path.parent)
            self._named = True

    def rows(self) -> list[Row]:
        """All whole rows, in order."""
        return list(read_rows(self.path))

    def rewind(self, update: int, discarded: Path | None = None) -> int:
        """Keep rows up to `update`; move later ones (work that no checkpoint holds) to `discarded`.

        Returns:
            How many rows were moved away.
        """
        if not self.path.exists():
            return 0
        rows = self.rows()
        kept = [row for row in rows if row["update"] <= update]
        late = [row for row in rows if row["update"] > update]
        if discarded is not None and late:
            there = list(read_rows(discarded))  # a kill may have come between these two files
            _rewrite(discarded, [*there, *(row for row in late if row not in there)])
        _rewrite(self.path, kept)
        return len(late)


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a journal that may still be written to; a torn last line is left out.

    Raises:
        DataError: A line that is not JSON stands before the last one: the file was damaged, not
            cut.
    """
    if not path.exists():
        return
    if not path.is_file():  # reading a pipe would never end
        raise DataError(f"{path} is not a file")
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if number == len(lines):  # what follows the last newline: empty, or torn
            return
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not a JSON line ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("update"), int):
            raise DataError(f"{path}:{number}: expected an object with an integer `update`")
        yield row


def _rewrite(path: Path, rows: list[Row]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_file(path, text.encode(), replace=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
