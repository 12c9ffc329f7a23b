"""The result of one evaluation: every response of every problem, its file, and its summary.

An evaluation file is `evaluations/<set>-update-000160.parquet` in the run folder, one row per
problem; rewards are null (here nan) where the verifier could not score a response.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_rlvr.errors import DataError
from offline_rlvr.evaluation.intervals import bootstrap_interval
from offline_rlvr.evaluation.metrics import mean_at_k, pass_at_k_of
from offline_rlvr.numerics.pass_at_k import powers_of_two
from offline_rlvr.records import REWARD_OF_STATUS, SET_NAME, FinishReason, Problem, Verdict


class Sampled(NamedTuple):
    """What is kept of a response: its text, its number of tokens, and how it ended."""

    text: str
    tokens: int
    finish_reason: FinishReason


@dataclass(frozen=True, eq=False)
class Evaluation:
    """n responses to each of P problems, by the model after `update` updates.

    Attributes:
        name: The set of problems: letters, digits, `.`, `_`, `-`.
        update: Updates applied before; 0 is the untouched model.
        problem_ids, questions, answers: [P] each, ids unique.
        rewards: [P, n], nan where unscored.
        statuses: [P][n], see `records.Status`.
        texts: [P][n] responses as text.
        lengths: [P, n] response tokens.
        finish_reasons: [P][n], `stop` or `length` (truncated).
        engine: What sampled the responses, and its precision: `vllm bfloat16`; empty: not recorded.

    Raises:
        DataError: Sizes differ, an id repeats, or a reward contradicts its status.
    """

    name: str
    update: int
    problem_ids: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    rewards: NDArray[np.float64]
    statuses: tuple[tuple[str, ...], ...]
    texts: tuple[tuple[str, ...], ...]
    lengths: NDArray[np.int32]
    finish_reasons: tuple[tuple[str, ...], ...]
    engine: str = ""

    def __post_init__(self) -> None:
        problems = len(self.problem_ids)
        if not SET_NAME.fullmatch(self.name) or self.update < 0:
            raise DataError(
                f"evaluation {self.name!r} at update {self.update}: a name is letters, digits, "
                "'.', '_', '-'; an update is 0 or more"
            )
        if problems == 0 or self.rewards.ndim != 2 or self.rewards.shape[1] == 0:
            raise DataError(f"evaluation {self.name!r} has no responses")
        if len(set(self.problem_ids)) != problems:
            twice = next(i for i in self.problem_ids if self.problem_ids.count(i) > 1)
            raise DataError(f"evaluation {self.name!r} has problem {twice!r} more than once")
        ragged = (self.statuses, self.texts, self.finish_reasons)
        sizes = {(len(rows), *sorted({len(row) for row in rows})) for rows in ragged}
        sizes |= {self.rewards.shape, self.lengths.shape}
        if sizes != {(problems, self.n)} or {len(self.questions), len(self.answers)} != {problems}:
            raise DataError(
                f"evaluation {self.name!r}: expected {problems} problems with {self.n} responses "
                f"each in every column, found {sorted(sizes)}"
            )
        unscored = np.isnan(self.rewards)
        scored = np.array([[s in REWARD_OF_STATUS for s in row] for row in self.statuses])
        if (wrong := unscored == scored).any():
            p, i = (int(index[0]) for index in wrong.nonzero())
            raise DataError(
                f"evaluation {self.name!r}, problem {self.problem_ids[p]!r}, response {i}: "
                f"status {self.statuses[p][i]!r} with reward {self.rewards[p, i]}"
            )

    @classmethod
    def of(
        cls,
        name: str,
        update: int,
        problems: Sequence[Problem],
        responses: Sequence[Sequence[Sampled]],
        verdicts: Sequence[Sequence[Verdict]],
        *,
        engine: str = "",
    ) -> "Evaluation":
        """From what sampling and verifying gave: n responses and verdicts for each problem."""
        table = [[np.nan if v.reward is None else v.reward for v in row] for row in verdicts]
        _rectangular(name, table)
        _rectangular(name, responses)
        return cls(
            name,
            update,
            tuple(problem.id for problem in problems),
            tuple(problem.question for problem in problems),
            tuple(problem.answer for problem in problems),
            np.array(table, np.float64),
            tuple(tuple(v.status for v in row) for row in verdicts),
            tuple(tuple(r.text for r in row) for row in responses),
            np.array([[r.tokens for r in row] for row in responses], np.int32),
            tuple(tuple(r.finish_reason for r in row) for row in responses),
            engine,
        )

    @property
    def n(self) -> int:
        """Responses per problem."""
        return self.rewards.shape[1]

    @property
    def unscored(self) -> int:
        """Responses the verifier could not score."""
        return int(np.isnan(self.rewards).sum())

    @property
    def truncated_share(self) -> float:
        """Share of responses cut at the length limit."""
        return float(np.mean([reason == "length" for row in self.finish_reasons for reason in row]))

    def means(self) -> dict[str, float]:
        """problem id -> mean@n over its scored responses; nan without any."""
        return dict(zip(self.problem_ids, mean_at_k(self.rewards).tolist(), strict=True))

    def passes(self, k: int) -> dict[str, float]:
        """problem id -> pass@k; nan with fewer than k scored responses."""
        return dict(zip(self.problem_ids, pass_at_k_of(self.rewards, k).tolist(), strict=True))

    @cached_property
    def _summary(self) -> dict[str, Any]:
        mean = bootstrap_interval(mean_at_k(self.rewards)).as_dict()
        passes = {
            f"pass@{k}": bootstrap_interval(pass_at_k_of(self.rewards, k)).as_dict()
            for k in powers_of_two(self.n)
        }
        return {
            "name": self.name,
            "update": self.update,
            "problems": len(self.problem_ids),
            "responses_per_problem": self.n,
            f"mean@{self.n}": mean,
            **passes,
            "mean_length": float(self.lengths.mean()),
            "truncated_share": self.truncated_share,
            "unscored": self.unscored,
        }

    def summary(self) -> dict[str, Any]:
        """mean@n and pass@1, 2, 4, ... n as {value, low, high, problems}, and the other shares;
        JSON-able.

        `problems` inside is how many could be measured: pass@k leaves out a problem with fewer
        than k scored responses.
        """
        return dict(self._summary)


def problem_weighted(evaluations: Iterable[Evaluation]) -> dict[str, Any]:
    """mean@n over all problems of several sets, as {value, low, high, problems}."""
    return bootstrap_interval(*(mean_at_k(e.rewards) for e in evaluations)).as_dict()


def best_update(evaluations: Iterable[Evaluation]) -> tuple[int, float] | None:
    """The trained policy with the highest mean@n over all problems, each weighing the same.

    Returns:
        (update, mean): the earliest of equals among the updates after which every set was
        evaluated; None without any.
    """
    by_update: dict[int, list[Evaluation]] = {}
    for evaluation in evaluations:
        by_update.setdefault(evaluation.update, []).append(evaluation)
    sets = max(map(len, by_update.values()), default=0)
    means = [
        (update, float(np.nanmean(np.concatenate([mean_at_k(e.rewards) for e in found]))))
        for update, found in sorted(by_update.items())
        if update > 0 and len(found) == sets and not all(np.isnan(e.rewards).all() for e in found)
    ]
    return max(means, key=lambda pair: pair[1], default=None)


def _rectangular(name: str, rows: Sequence[Sequence[Any]]) -> None:
    sizes = {len(row) for row in rows}
    if len(sizes) != 1:
        raise DataError(
            f"evaluation {name!r}: problems have {sorted(sizes)} responses, not one number"
        )
