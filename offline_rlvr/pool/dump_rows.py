"""From the rows of a dump to prompts and responses; every damaged row is named, none is mended."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.pool.dump import Dump, Placed
from offline_rlvr.pool.rows import FINISH_REASONS


@dataclass(frozen=True)
class Columns:
    """The columns of a dump, None where there is none.

    Attributes:
        group: Rows with the same value answer the same prompt.
        problem_id: Name of the problem.
        prompt_ids: Token ids of the prompt, template included.
        question: The problem's text, or the prompt that was made of it, decoded.
        answer: The gold answer.
        completion_ids: Token ids of the response, stop token included.
        logprobs: Of each of them, in nats, under the distribution it was drawn from.
        text: The response as text.
        finish_reason: `stop` or `length`.
        reward: A number; null or NaN where it could not be scored.
        mask: 1 for each token of the response.
    """

    group: str | None = None
    problem_id: str | None = None
    prompt_ids: str | None = "prompt_ids"
    question: str | None = "question"
    answer: str | None = "answer"
    completion_ids: str | None = "completion_ids"
    logprobs: str | None = "logprobs"
    text: str | None = "text"
    finish_reason: str | None = "finish_reason"
    reward: str | None = "reward"
    mask: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """Role -> column, without those that are not there."""
        return {role: column for role, column in asdict(self).items() if column is not None}

    @property
    def key(self) -> str:
        """The column whose equal values make a group."""
        found = self.group or self.problem_id or self.prompt_ids or self.question
        assert found is not None  # `resolve` has refused a dump without any
        return found


#: The layouts of `pool.export`, with what the programs that they are named after write beside.
LAYOUTS = {
    "responses": Columns(group="group_id", problem_id="problem_id"),
    "trl": Columns(group="group_id", problem_id="problem_id", text="completion"),
    "verl": Columns(
        group="uid",
        problem_id="problem_id",
        question="input",
        answer="gts",
        completion_ids="response_ids",
        logprobs="response_logprobs",
        text="output",
        reward="score",
        mask="response_mask",
    ),
}


def resolve(dump: Dump, layout: str, named: Mapping[str, str]) -> Columns:
    """The layout's columns that the file has, and those that were named, which it must have.

    Raises:
        ConfigError: An unknown layout, a named column that is not there, or too few of them.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown format {layout!r}; there are: {', '.join(LAYOUTS)}")
    has = f"{dump.path} has the columns {', '.join(dump.columns)}"
    for role, column in named.items():
        if column not in dump.columns:
            raise ConfigError(
                f"there is no column {column!r} (--{role.replace('_', '-')}): {has}",
                hint="name the columns as the file does",
            )
    known = asdict(LAYOUTS[layout])
    there = {role: column if column in dump.columns else None for role, column in known.items()}
    columns = Columns(**{**there, **named})
    if not (columns.prompt_ids or columns.question):
        raise ConfigError(
            f"neither prompt ids nor questions: {has}",
            hint="add --prompt-ids COLUMN or --question COLUMN, or another --format",
        )
    if not (columns.completion_ids or columns.text):
        raise ConfigError(
            f"neither response ids nor response texts: {has}",
            hint="add --completion-ids COLUMN or --text COLUMN, or another --format",
        )
    if columns.logprobs and not columns.completion_ids:
        raise ConfigError(
            f"the log-probs in {columns.logprobs!r} belong to token ids, and there are none: {has}",
            hint="add --completion-ids COLUMN",
        )
    return columns


@dataclass(frozen=True)
class Row:
    """One response of a dump, each value of the right type; None where there is no column."""

    place: str
    problem_id: str | None
    prompt_ids: tuple[int, ...] | None
    question: str | None
    answer: str | None
    completion_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    text: str | None
    finish_reason: str | None
    reward: float | None


def parse(placed: Placed, columns: Columns, vocab_size: int) -> Row:
    """The values of one row.

    Raises:
        DataError: A value that is missing or of another type, an id outside the vocabulary, or
            lengths that differ; with file and row.
    """
    place, row = placed
    ids = _ids(place, row, columns.completion_ids, vocab_size)
    logprobs = _numbers(place, row, columns.logprobs)
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        raise DataError(f"{place}: {len(ids)} response ids but {len(logprobs)} log-probs")
    if columns.mask is not None:
        mask = _list(place, row, columns.mask)
        if mask != [1] * len(ids or mask):
            raise DataError(
                f"{place}: {columns.mask!r} is not 1 for each of the response's tokens",
                hint="responses with tokens that the policy did not write (tools, padding) cannot "
                "be imported; cut padding off",
            )
    finish = _text(place, row, columns.finish_reason)
    if finish is not None and finish not in FINISH_REASONS:
        raise DataError(
            f"{place}: {columns.finish_reason!r} is {finish!r}; allowed: "
            f"{', '.join(FINISH_REASONS)}"
        )
    return Row(
        place=place,
        problem_id=_text(place, row, columns.problem_id, number=True),
        prompt_ids=_ids(place, row, columns.prompt_ids, vocab_size),
        question=_text(place, row, columns.question),
        answer=_text(place, row, columns.answer, number=True),
        completion_ids=ids,
        logprobs=logprobs,
        text=_text(place, row, columns.text),
        finish_reason=finish,
        reward=_reward(place, row, columns.reward),
    )


def same_problem(rows: Sequence[Row]) -> Row:
    """The first row of a group, whose prompt and answer all others must have.

    Raises:
        DataError: A row has another.
    """
    first = rows[0]
    for row in rows[1:]:
        for part in ("prompt_ids", "question", "answer", "problem_id"):
            if getattr(row, part) != getattr(first, part):
                raise DataError(
                    f"{row.place}: {part} differs from {first.place}, its group's first"
                )
    return first


def _value(place: str, row: dict[str, Any], column: str) -> Any:
    value = row.get(column)
    if value is None:
        raise DataError(f"{place}: {column!r} is missing")
    return value


def _list(place: str, row: dict[str, Any], column: str) -> list[Any]:
    values = _value(place, row, column)
    if not isinstance(values, list):
        raise DataError(f"{place}: {column!r} is {type(values).__name__}; expected a list")
    return values


def _ids(
    place: str, row: dict[str, Any], column: str | None, vocab_size: int
) -> tuple[int, ...] | None:
    if column is None:
        return None
    values = _list(place, row, column)
    for t, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
            raise DataError(
                f"{place}: token {t} of {column!r} is {value!r}; "
                f"expected an id of the vocabulary of {vocab_size}"
            )
    if not values:
        raise DataError(f"{place}: {column!r} is empty")
    return tuple(values)


def _numbers(place: str, row: dict[str, Any], column: str | None) -> tuple[float, ...] | None:
    if column is None:
        return None
    values = _list(place, row, column)
    for t, value in enumerate(values):
        if not _is_number(value):
            raise DataError(
                f"{place}: token {t} of {column!r} is {value!r}; expected a finite number",
                hint="without log-probs of its own a dump is scored again: leave the column out",
            )
    return tuple(map(float, values))


def _text(
    place: str, row: dict[str, Any], column: str | None, *, number: bool = False
) -> str | None:
    if column is None:
        return None
    value = _value(place, row, column)
    if number and _is_number(value):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"{place}: {column!r} is {type(value).__name__}; expected text")
    return value


def _reward(place: str, row: dict[str, Any], column: str | None) -> float | None:
    value = None if column is None else row.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not _is_number(value):
        raise DataError(f"{place}: {column!r} is {value!r}; expected a number, or null")
    return float(value)


def _is_number(value: Any) -> bool:
    """A finite number; true is none, nor is an integer that no float can hold."""
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    return kind and abs(value) <= sys.float_info.max
