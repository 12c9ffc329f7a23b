"""Groups and verdicts to Arrow tables, each value checked before it is written."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from offline_rlvr.errors import DataError
from offline_rlvr.pool.schema import GRADES, SAMPLES
from offline_rlvr.records import FinishReason, Group, Response, Status, Verdict

#: A log-prob may exceed 0 by rounding only. The trainer's batches have the same limit.
MAX_LOGPROB = 1e-6
STATUSES: tuple[str, ...] = get_args(Status)
FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)
_INT64 = np.iinfo(np.int64)
_FLOAT32_MIN = float(np.finfo(np.float32).min)


def samples_table(groups: Sequence[Group], group_size: int, vocab_size: int) -> pa.Table:
    """The samples of groups in ascending order of id.

    Raises:
        DataError: A value that must not reach a pool; names the group, its problem and the
            response.
    """
    for group in groups:
        _check_group(group, group_size, vocab_size)
    responses = [response for group in groups for response in group.responses]
    lengths = [len(response.token_ids) for response in responses]
    ids = np.array([i for r in responses for i in r.token_ids], np.int32)
    logprobs = np.array([p for r in responses for p in r.behavior_logprobs], np.float32)
    outer = np.arange(len(groups) + 1, dtype=np.int32) * group_size
    inner = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = {
        "group_id": [group.group_id for group in groups],
        "problem_id": [group.problem.id for group in groups],
        "question": [group.problem.question for group in groups],
        "answer": [group.problem.answer for group in groups],
        "prompt_token_ids": [list(group.prompt_token_ids) for group in groups],
        "response_token_ids": _nested("response_token_ids", outer, inner, ids),
        "behavior_logprobs": _nested("behavior_logprobs", outer, inner, logprobs),
        "response_text": [[r.text for r in group.responses] for group in groups],
        "finish_reason": [[r.finish_reason for r in group.responses] for group in groups],
        "seeds": [[r.seed for r in group.responses] for group in groups],
        "prompt_length": [len(group.prompt_token_ids) for group in groups],
        "response_lengths": [[len(r.token_ids) for r in group.responses] for group in groups],
    }
    return _table(columns, SAMPLES)


def grades_table(verdicts: Mapping[int, Sequence[Verdict]], group_size: int) -> pa.Table:
    """The grades of groups (group id -> K verdicts) in ascending order of id.

    Raises:
        DataError: Wrong number of verdicts, unknown status or non-finite reward; names the group.
    """
    ordered = sorted(verdicts)
    for group_id in ordered:
        _check_verdicts(f"group {group_id}", verdicts[group_id], group_size)
    columns = {
        "group_id": ordered,
        "rewards": [[v.reward for v in verdicts[i]] for i in ordered],
        "statuses": [[v.status for v in verdicts[i]] for i in ordered],
        "golds": [[v.gold for v in verdicts[i]] for i in ordered],
        "answers": [[v.answer for v in verdicts[i]] for i in ordered],
    }
    return _table(columns, GRADES)


def _nested(name: str, outer: np.ndarray, inner: np.ndarray, values: np.ndarray) -> pa.Array:
    kind = SAMPLES.field(name).type
    responses = pa.ListArray.from_arrays(pa.array(inner), pa.array(values), type=kind.value_type)
    return pa.ListArray.from_arrays(pa.array(outer), responses, type=kind)


def _table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    arrays = []
    for field in schema:
        column = columns[field.name]
        try:
            arrays.append(
                column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
            )
        except (pa.ArrowException, UnicodeEncodeError, TypeError, OverflowError) as error:
            raise DataError(
                f"column {field.name!r} holds a value it cannot store: {error}"
            ) from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _check_group(group: Group, group_size: int, vocab_size: int) -> None:
    where = f"group {group.group_id} (problem {group.problem.id!r})"
    if not 0 <= group.group_id <= _INT64.max:
        raise DataError(f"{where}: a group id is an integer >= 0")
    if len(group.responses) != group_size:
        raise DataError(
            f"{where} has {len(group.responses)} responses; "
            f"every group of this pool has {group_size}"
        )
    if not group.prompt_token_ids:
        raise DataError(f"{where} has an empty prompt")
    _check_ids(f"{where}, prompt", group.prompt_token_ids, vocab_size)
    for text in (group.problem.id, group.problem.question, group.problem.answer):
        _check_text(where, text)
    for index, response in enumerate(group.responses):
        _check_response(f"{where}, response {index}", response, vocab_size)
    _check_verdicts(where, group.verdicts, group_size)


def _check_response(where: str, response: Response, vocab_size: int) -> None:
    if not response.token_ids:
        raise DataError(f"{where} has no tokens")
    if len(response.token_ids) != len(response.behavior_logprobs):
        raise DataError(
            f"{where} has {len(response.token_ids)} tokens "
            f"but {len(response.behavior_logprobs)} behavior log-probs"
        )
    _check_ids(where, response.token_ids, vocab_size)
    try:
        logprobs = np.asarray(response.behavior_logprobs, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{where}: behavior log-probs that are not numbers") from None
    # NaN (None becomes that) fails every comparison; float32 would store what is smaller as -inf.
    bad = ~((logprobs >= _FLOAT32_MIN) & (logprobs <= MAX_LOGPROB))
    if bad.any():
        position = int(bad.argmax())
        raise DataError(
            f"{where}, token {position}: behavior log-prob {response.behavior_logprobs[position]}; "
            "it must be finite and <= 0"
        )
    if response.finish_reason not in FINISH_REASONS:
        raise DataError(
            f"{where}: finish_reason {response.finish_reason!r}; "
            f"allowed: {', '.join(FINISH_REASONS)}"
        )
    if response.seed is not None and not _INT64.min <= response.seed <= _INT64.max:
        raise DataError(f"{where}: seed {response.seed} does not fit 64 bits")
    _check_text(where, response.text)


def _check_ids(where: str, ids: Sequence[int], vocab_size: int) -> None:
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        raise DataError(f"{where}: token ids that are not integers")
    bad = (array < 0) | (array >= vocab_size)
    if bad.any():
        position = int(bad.argmax())
        raise DataError(
            f"{where}, token {position}: id {ids[position]} "
            f"is outside the vocabulary of {vocab_size}"
        )


def _check_text(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: text that is not valid Unicode ({error.reason})") from None


def _check_verdicts(where: str, verdicts: Sequence[Verdict], group_size: int) -> None:
    if len(verdicts) != group_size:
        raise DataError(f"{where} has {len(verdicts)} verdicts for {group_size} responses")
    for index, verdict in enumerate(verdicts):
        if verdict.status not in STATUSES:
            raise DataError(
                f"{where}, response {index}: status {verdict.status!r}; "
                f"allowed: {', '.join(STATUSES)}"
            )
        if verdict.reward is not None and not math.isfinite(verdict.reward):
            raise DataError(f"{where}, response {index}: reward {verdict.reward} is not finite")
        for text in (verdict.gold, verdict.answer):
            if text is not None:
                _check_text(f"{where}, response {index}", text)
