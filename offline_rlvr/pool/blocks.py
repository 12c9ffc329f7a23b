"""A decoded row group of samples: every token checked once, then cut into groups."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from offline_rlvr.errors import DataError
from offline_rlvr.pool.decode import Source, first_null
from offline_rlvr.pool.rows import MAX_LOGPROB


@dataclass(frozen=True)
class GroupArrays:
    """One group as stored, with the verdicts of the pool's chosen verifier. K responses.

    Attributes:
        prompt_token_ids: int32 [P].
        response_token_ids: K arrays, int32 [R_i].
        behavior_logprobs: K arrays, float32 [R_i], nats.
        rewards: float64 [K]; NaN = could not be scored.
        statuses: K names.
        texts: K decoded responses: untrusted, see `printable` before showing them.
        finish_reasons: K times `stop` or `length`.
        seeds: K sampling seeds, where there were any.
    """

    group_id: int
    problem_id: str
    question: str
    answer: str
    prompt_token_ids: np.ndarray
    response_token_ids: list[np.ndarray]
    behavior_logprobs: list[np.ndarray]
    rewards: np.ndarray
    statuses: list[str]
    texts: list[str]
    finish_reasons: list[str]
    seeds: list[int | None]


@dataclass(frozen=True)
class _Ragged:
    """Lists of numbers: list i is values[offsets[i] : offsets[i + 1]]."""

    offsets: np.ndarray
    values: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:
        # A copy: a view would keep the whole row group alive after it left the cache.
        return self.values[self.offsets[i] : self.offsets[i + 1]].copy()


class Block:
    """The groups of one row group, validated.

    Raises:
        DataError: A null, unequal lengths, an id outside the vocabulary, or a log-prob that is not
            finite and <= 0; names file, row and response.
    """

    def __init__(self, source: Source, table: pa.Table, group_size: int, vocab_size: int):
        self._source, self._table, self._k = source, table, group_size
        self.nbytes: int = table.nbytes
        self._prompts = self._ragged(source.column(table, "prompt_token_ids"), 1)
        self._ids = self._ragged(source.lists(table, "response_token_ids", group_size), group_size)
        logprobs = source.lists(table, "behavior_logprobs", group_size)
        self._logprobs = self._ragged(logprobs, group_size)
        for name in ("problem_id", "question", "answer"):
            source.column(table, name)
        self._texts = source.lists(table, "response_text", group_size)
        self._reasons = source.lists(table, "finish_reason", group_size)
        self._seeds = source.lists(table, "seeds", group_size, nulls=True)
        self._check_lengths()
        for ragged, k in ((self._prompts, 1), (self._ids, group_size)):
            bad = (ragged.values < 0) | (ragged.values >= vocab_size)
            self._refuse(bad, ragged, k, f"token id outside the vocabulary of {vocab_size}")
        values = self._logprobs.values
        # NaN fails the comparison, so it is caught together with positive values.
        bad = ~(values <= MAX_LOGPROB) | np.isinf(values)
        self._refuse(
            bad, self._logprobs, group_size, "behavior log-prob that is not finite and <= 0"
        )

    def group(self, row: int, rewards: np.ndarray, statuses: list[str]) -> GroupArrays:
        """The group at a row of this row group."""
        flat = range(row * self._k, (row + 1) * self._k)
        first, length = flat.start, self._k
        return GroupArrays(
            group_id=self._table.column("group_id")[row].as_py(),
            problem_id=self._table.column("problem_id")[row].as_py(),
            question=self._table.column("question")[row].as_py(),
            answer=self._table.column("answer")[row].as_py(),
            prompt_token_ids=self._prompts[row],
            response_token_ids=[self._ids[i] for i in flat],
            behavior_logprobs=[self._logprobs[i] for i in flat],
            rewards=rewards.copy(),
            statuses=statuses,
            texts=self._texts.slice(first, length).to_pylist(),
            finish_reasons=self._reasons.slice(first, length).to_pylist(),
            seeds=self._seeds.slice(first, length).to_pylist(),
        )

    def duplicate_responses(self) -> int:
        """Responses that repeat an earlier one of their group, token for token."""
        count = 0
        for row in range(self._table.num_rows):
            flat = range(row * self._k, (row + 1) * self._k)
            count += self._k - len({self._ids[i].tobytes() for i in flat})
        return count

    def _ragged(self, lists: pa.Array, k: int) -> _Ragged:
        """`lists` holds k lists a row."""
        offsets, values = lists.offsets.to_numpy(), lists.values
        if values.null_count:
            at = self._place(first_null(values), offsets, k)
            raise DataError(f"{at}: a null among token ids or behavior log-probs")
        return _Ragged(offsets, values.to_numpy())

    def _check_lengths(self) -> None:
        lengths = np.diff(self._ids.offsets)
        stored = self._source.lists(self._table, "response_lengths", self._k).to_numpy()
        bad = (lengths != np.diff(self._logprobs.offsets)) | (lengths != stored) | (lengths < 1)
        if bad.any():
            row, response = divmod(int(bad.argmax()), self._k)
            i = row * self._k + response
            raise DataError(
                f"{self._source.row(row)}, response {response}: {lengths[i]} token ids, "
                f"{np.diff(self._logprobs.offsets)[i]} behavior log-probs, length {stored[i]}"
            )
        prompts = np.diff(self._prompts.offsets)
        bad = prompts != self._source.numbers(self._table, "prompt_length")
        if bad.any():
            raise DataError(
                f"{self._source.row(bad.argmax())}: the prompt does not have the length it says"
            )

    def _refuse(self, bad: np.ndarray, ragged: _Ragged, k: int, what: str) -> None:
        if bad.any():
            at = int(bad.argmax())
            raise DataError(
                f"{self._place(at, ragged.offsets, k)}: {ragged.values[at]} is a {what}"
            )

    def _place(self, position: int, offsets: np.ndarray, k: int) -> str:
        """File, row, response and token of a flat position."""
        flat = int(np.searchsorted(offsets, position, "right")) - 1
        row, response = divmod(flat, k)
        where = self._source.row(row) + (f", response {response}" if k > 1 else ", prompt")
        return f"{where}, token {position - int(offsets[flat])}"
