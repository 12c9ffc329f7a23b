"""Responses before and after training, side by side, without picking flattering ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from offline_rlvr.evaluation import Evaluation
from offline_rlvr.evaluation.metrics import FULL_REWARD
from offline_rlvr.report.inert import shortened
from offline_rlvr.report.verdict import Comparison

Outcome = Literal["right", "wrong", "partly right", "not scored"]


@dataclass(frozen=True)
class Side:
    """One response: its text (shortened), outcome, tokens, and whether it was cut at the limit."""

    text: str
    outcome: Outcome
    length: int
    truncated: bool


@dataclass(frozen=True)
class Pair:
    """The first response to one problem, before and after training."""

    set_name: str
    problem_id: str
    question: str
    answer: str
    before: Side
    after: Side

    @property
    def changed(self) -> bool:
        """The outcome is another one than before."""
        return self.before.outcome != self.after.outcome


@dataclass(frozen=True)
class Examples:
    """The chosen pairs, and what they were chosen from."""

    pairs: list[Pair]
    problems: int
    improved: int
    worsened: int


def choose(comparisons: Sequence[Comparison], count: int = 20) -> Examples:
    """Up to `count` problems, those first whose first response changed its outcome.

    Changes for the better and for the worse appear in their true proportion (each at least once if
    there is one), in the order of the file; unchanged problems fill up.
    """
    pairs = [pair for comparison in comparisons for pair in _pairs(comparison)]
    improved = [p for p in pairs if p.changed and p.after.outcome == "right"]
    worsened = [p for p in pairs if p.changed and p.before.outcome == "right"]
    changes = len(improved) + len(worsened)
    share_worse = min(len(worsened), round(count * len(worsened) / changes)) if changes else 0
    if worsened and count > 1:
        share_worse = max(1, share_worse)
    if improved and count > 1:
        share_worse = min(count - 1, share_worse)
    chosen = improved[: count - share_worse] + worsened[:share_worse]
    rest = (pair for pair in pairs if pair not in chosen)
    chosen += islice(rest, count - len(chosen))
    return Examples(chosen, len(pairs), len(improved), len(worsened))


def _pairs(comparison: Comparison) -> list[Pair]:
    before, after = comparison.before, comparison.after
    place = {problem: row for row, problem in enumerate(after.problem_ids)}
    return [
        Pair(
            before.name,
            problem,
            before.questions[row],
            before.answers[row],
            _side(before, row),
            _side(after, place[problem]),
        )
        for row, problem in enumerate(before.problem_ids)
        if problem in place
    ]


def _side(evaluation: Evaluation, row: int) -> Side:
    reward = evaluation.rewards[row, 0]
    outcome: Outcome = "not scored"
    if not np.isnan(reward):
        partly: Outcome = "partly right" if reward > 0 else "wrong"
        outcome = "right" if reward >= FULL_REWARD else partly
    return Side(
        shortened(evaluation.texts[row][0]),
        outcome,
        int(evaluation.lengths[row, 0]),
        evaluation.finish_reasons[row][0] == "length",
    )
