"""From the rows of any table to problems; every damaged row is named, none is skipped.

A column may be a path into nested values: `prompt.0.content` is the field `content` of the first
entry of the list `prompt` (`-1` is the last), and `scores.mean` the mean of a list of numbers. A
column whose whole name has the dots in it wins over a path.
"""

import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.records import Problem

#: Where a row stands, for messages ("line 3"), and its columns.
Row = tuple[str, dict[str, Any]]

_BOUNDS = ("above", "below")


@dataclass(frozen=True)
class Columns:
    """The columns (or paths) of a problem's parts, and the conditions a row has to meet.

    Args:
        question: Of the question.
        answer: Of the gold answer; numbers become their exact text (7 -> "7", 7.0 -> "7.0").
        id: Of the id.
        where: Column -> `{above: x, below: y}` (strict, either may be left out) or `{equals: v}`.

    Raises:
        ConfigError: A condition that is not one of these.
    """

    question: str = "question"
    answer: str = "answer"
    id: str = "id"
    where: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self):
        if not isinstance(self.where or {}, Mapping):
            raise ConfigError(f"where is {self.where!r}; expected column: condition")
        for column, condition in (self.where or {}).items():
            _check_condition(column, condition)

    @property
    def required(self) -> list[str]:
        """The columns that must be there; an id may be missing, but not a misspelled one."""
        named = [self.id] if self.id != "id" else []
        return [self.question, self.answer, *named, *(self.where or {})]


def problems_of(
    source: str, stem: str, rows: Iterable[Row], columns: Columns, limit: int | None = None
) -> list[Problem]:
    """The problems of the rows that meet every condition, in order.

    Args:
        source: What the rows come from, for messages.
        stem: Where no row has an id, ids are this and the number of the row, from 0.
        rows: The rows, each with its place.
        columns: Where a problem's parts stand.
        limit: At most so many problems.

    Raises:
        ConfigError: A column that the first row does not have, or a limit below 1.
        DataError: A damaged row, an empty question or answer, an id that occurs twice, or no
            problems at all.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; it must be at least 1, or null for all")
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    numbered = False
    number = -1
    for number, (place, row) in enumerate(rows):
        if number == 0:
            _check_columns(source, row, columns)
            numbered = columns.id == "id" and "id" not in row
        here = f"{source}, {place}"
        if not _passes(here, row, columns.where or {}):
            continue
        name = f"{stem}-{number}" if numbered else _text(here, row, columns.id)
        if name in seen:
            raise DataError(f"{here}: id {name!r} is already that of {seen[name]}")
        seen[name] = place
        problems.append(
            Problem(name, _text(here, row, columns.question), _text(here, row, columns.answer))
        )
        if len(problems) == limit:
            break
    if not problems:
        filtered = f": none of its {number + 1} rows meets `where`" if number >= 0 else ""
        raise DataError(f"{source} holds no problems{filtered}")
    return problems


class _MissingError(Exception):
    """A path that leads nowhere; `damaged` when the columns are right and the value is not.

    Its message starts with the path: "'a.b'; 'a' has: 'c'".
    """

    def __init__(self, message: str, damaged: bool):
        super().__init__(message)
        self.damaged = damaged


def _cell(row: dict[str, Any], path: str) -> Any:
    """The value at a path.

    Raises:
        _MissingError: There is none.
    """
    if path in row:
        return row[path]
    value: Any = row
    walked: list[str] = []
    for part in path.split("."):
        at = repr(".".join(walked)) if walked else "it"
        if isinstance(value, dict):
            if part not in value:
                has = ", ".join(map(repr, value))
                raise _MissingError(f"{path!r}; {at} has: {has}", damaged=False)
            value = value[part]
        elif isinstance(value, list) and part == "mean":
            value = _mean(path, at, value)
        elif isinstance(value, list) and re.fullmatch(r"-?[0-9]+", part):
            if not -len(value) <= int(part) < len(value):
                raise _MissingError(f"{path!r}; {at} has {len(value)} entries", damaged=True)
            value = value[int(part)]
        else:
            found = f"{reprlib.repr(value)} ({type(value).__name__})"
            raise _MissingError(f"{path!r}; {at} is {found}", damaged=value is None)
        walked.append(part)
    return value


def _mean(path: str, at: str, values: list[Any]) -> float:
    if not values or not all(_is_number(value) for value in values):
        found = reprlib.repr(values)
        raise _MissingError(f"{path!r}; {at} is {found}, not finite numbers", damaged=True)
    # Exactly rounded: a strict bound of 0.2 must not depend on the order of the scores.
    return math.fsum(values) / len(values)


def _is_number(value: Any) -> bool:
    # bool is an int in Python, but True is nobody's number.
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    return math.isfinite(value)


def _check_columns(source: str, row: dict[str, Any], columns: Columns) -> None:
    """A column missing in the first row is a wrong setting; missing in a later row it is damage."""
    for path in columns.required:
        try:
            _cell(row, path)
        except _MissingError as missing:
            if not missing.damaged:
                raise ConfigError(
                    f"{source} has no column {missing}",
                    hint="name the columns with question=, answer= and id=",
                ) from None


def _value(here: str, row: dict[str, Any], path: str) -> Any:
    try:
        return _cell(row, path)
    except _MissingError as missing:
        raise DataError(f"{here}: there is no {missing}") from None


def _text(here: str, row: dict[str, Any], path: str) -> str:
    """A cell as exact text."""
    value = _value(here, row, path)
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise DataError(
            f"{here}: {path!r} is {value!r} ({type(value).__name__}); expected text or a number"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{here}: {path!r} is {value}; expected text or a finite number")
    text = str(value)
    if not text.strip():
        raise DataError(f"{here}: {path!r} is empty")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{here}: {path!r} is not valid Unicode: {error.reason}") from None
    return text


def _passes(here: str, row: dict[str, Any], where: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a row meets every condition."""
    # Each is looked at, so that damage is found whatever the others say.
    met = [_meets(here, row, path, condition) for path, condition in where.items()]
    return all(met)


def _meets(here: str, row: dict[str, Any], path: str, condition: Mapping[str, Any]) -> bool:
    value = _value(here, row, path)
    if "equals" in condition:
        wanted = condition["equals"]
        if value is None:
            raise DataError(f"{here}: {path!r} is None; it is compared with {wanted!r}")
        return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted
    if not _is_number(value):
        raise DataError(f"{here}: {path!r} is {value!r}; a bound needs a finite number")
    return condition.get("above", -math.inf) < value < condition.get("below", math.inf)


def _check_condition(column: str, condition: Any) -> None:
    complaint = ConfigError(
        f"where: {column!r} is {condition!r}; allowed: {{above: number, below: number}} (strict, "
        "one may be left out) or {equals: text, number, true or false}"
    )
    if not isinstance(condition, Mapping) or not condition:
        raise complaint
    if set(condition) == {"equals"}:
        if not isinstance(condition["equals"], str | int | float):
            raise complaint
    elif not set(condition) <= set(_BOUNDS) or not all(map(_is_number, condition.values())):
        raise complaint
