"""From a file of somebody else's responses to groups, whole, checked and in order.

What the file says of its tokens is checked as at a build and kept. What it does not say is made:

- The response's ids: the text's, and an EOS where it finished. It finished when the file's
  `finish_reason` says so; without that column when the text has fewer tokens than
  `sampling.max_new_tokens`. Ids that are in the file are taken as they are: where they lack the
  stop token they are refused, since its log-prob is missing too.
- The prompt's ids: the question's, in the config's prompt format. A question that is the whole
  prompt decoded, as verl writes it, is recognized by what the format puts around a question.
- The question: the prompt's ids, decoded.

The text of ids that are in the file is those ids, decoded: what is judged is what is trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.generation.prompt import PromptFormat
from offline_rlvr.generation.sampling import Sampling, checked_response
from offline_rlvr.pool.dump import Dump
from offline_rlvr.pool.dump_rows import Columns, Row, parse, same_problem
from offline_rlvr.records import Group, Problem, Response

#: Stands for a question, to see what a prompt format puts around it.
MARK = "31415926535"


@dataclass(frozen=True)
class Draft:
    """A group whose rows were read: ids are decided, log-probs perhaps not yet."""

    group_id: int
    problem: Problem
    prompt_ids: tuple[int, ...]
    rows: tuple[Row, ...]


class DumpGroups:
    """Groups of a dump: first as drafts, then, once every token has its log-prob, as groups.

    Args:
        dump: The file.
        columns: Its columns.
        group_size: K.
        vocab_size: Token ids are below it.
        sampling: What the responses are said to have been sampled with.
        tokenizer: The model's.
        prompt: Makes prompt ids of a question.
        max_prompt_tokens: Groups with longer prompts are dropped.

    Raises:
        DataError: A row without a value to group by; or, from every method, a row that cannot be
            what these arguments say, with file and row.
        IncompatibleError: Prompt ids that the format does not make of the question.
    """

    def __init__(
        self,
        dump: Dump,
        columns: Columns,
        *,
        group_size: int,
        vocab_size: int,
        sampling: Sampling,
        tokenizer: Any,
        prompt: PromptFormat,
        max_prompt_tokens: int,
    ):
        self.columns, self.index = columns, dump.index(columns.key)
        self._dump, self._k, self._vocab_size = dump, group_size, vocab_size
        self._sampling, self._tokenizer = sampling, tokenizer
        self._prompt, self._max_prompt = prompt, max_prompt_tokens
        before, found, after = self._decode(self._render(MARK)).partition(MARK)
        self._around = (before, after) if found and (before + after).strip() else None

    def drafts(self, chunk: Sequence[int], drops: dict[str, int]) -> list[Draft]:
        """The groups at these positions with K responses; the others are counted in `drops`."""
        wanted = {}
        for position in chunk:
            rows = self.index.rows(position)
            if len(rows) < self._k:
                drops["fewer_than_group_size"] = drops.get("fewer_than_group_size", 0) + 1
            else:
                wanted[self.index.group_ids[position]] = rows[: self._k]
        read = self._dump.read([row for rows in wanted.values() for row in rows])
        found = []
        for group_id, rows in wanted.items():
            draft = self._draft(
                group_id, [parse(read[row], self.columns, self._vocab_size) for row in rows]
            )
            if len(draft.prompt_ids) > self._max_prompt:
                drops["prompt_too_long"] = drops.get("prompt_too_long", 0) + 1
            else:
                found.append(draft)
        return found

    def group(self, draft: Draft) -> Group:
        """The group without verdicts, its responses checked as at a build."""
        responses = tuple(self._response(draft.group_id, row) for row in draft.rows)
        return Group(draft.group_id, draft.problem, draft.prompt_ids, responses, ())

    def _draft(self, group_id: int, rows: Sequence[Row]) -> Draft:
        first = same_problem(rows)
        ids, question = first.prompt_ids, first.question
        if question is not None:
            question = self._bare(question)
            made = tuple(self._render(question))
            if ids is not None and ids != made:
                raise IncompatibleError(
                    f"{first.place}: the prompt ids are not those that this config's prompt makes "
                    "of the question",
                    hint="set prompt.system, prompt.user_suffix and prompt.chat_template as they "
                    "were when the responses were sampled",
                )
            ids = made
        assert ids is not None  # `resolve` has seen to it
        problem = Problem(
            first.problem_id or f"{self._dump.path.stem}-{group_id}",
            self._decode(ids) if question is None else question,
            first.answer or "",
        )
        return Draft(group_id, problem, ids, tuple(self._with_ids(row) for row in rows))

    def _bare(self, question: str) -> str:
        """The question, also where the file has the whole prompt, decoded."""
        if self._around is None:
            return question
        before, after = self._around
        if len(question) < len(before + after) or not (
            question.startswith(before) and question.endswith(after)
        ):
            return question
        bare = question[len(before) : len(question) - len(after)]
        return bare if self._decode(self._render(bare)) == question else question

    def _with_ids(self, row: Row) -> Row:
        """A response of text alone gets its ids, and its EOS where it finished."""
        limit, stops = self._sampling.max_new_tokens, self._sampling.stop_token_ids
        if row.completion_ids is None:
            assert row.text is not None  # `resolve` has seen to it
            ids = tuple(self._tokenizer.encode(row.text, add_special_tokens=False))
            finished = (
                len(ids) < limit if row.finish_reason is None else row.finish_reason == "stop"
            )
            if finished and not (ids and ids[-1] in stops):
                eos = self._tokenizer.eos_token_id
                ids = (*ids, eos if eos in stops else stops[0])
            row = replace(row, completion_ids=ids)
        return row

    def _response(self, group_id: int, row: Row) -> Response:
        ids, logprobs = row.completion_ids or (), row.logprobs or ()
        stops = self._sampling.stop_token_ids
        if len(ids) < self._sampling.max_new_tokens and not set(ids) & set(stops):
            raise DataError(
                f"{row.place}: the response has {len(ids)} tokens, fewer than "
                f"sampling.max_new_tokens ({self._sampling.max_new_tokens}), and none of the stop "
                f"tokens {list(stops)}: its stop token was cut off, and with it its log-prob",
                hint="dump the ids with the stop token, or set sampling.max_new_tokens to the "
                "limit that cut the response",
            )
        try:
            made = checked_response(
                group_id, ids, logprobs, self._decode(ids), self._sampling, None
            )
        except DataError as error:
            raise DataError(
                f"{row.place}: {error.message}",
                hint="set model and sampling as they were when the responses were sampled",
            ) from error
        if row.finish_reason not in (None, made.finish_reason):
            raise DataError(
                f"{row.place}: finish_reason is {row.finish_reason!r}, but the response ends as "
                f"{made.finish_reason!r}"
            )
        return made

    def _render(self, question: str) -> list[int]:
        return self._prompt.render(self._tokenizer, question)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))
