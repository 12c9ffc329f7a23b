"""The responses shown are the first of each problem, and the bad changes are shown as well."""

import dataclasses

import numpy as np

from offline_rlvr.evaluation import Evaluation
from offline_rlvr.evaluation.records import Sampled
from offline_rlvr.records import Problem, Verdict
from offline_rlvr.report.examples import choose
from offline_rlvr.report.verdict import Comparison

STATUS = {1: "correct", 0: "incorrect", None: "timeout"}


def evaluation(update, first):
    """n = 2; `first` are the rewards of the first responses, the second is always right."""
    return Evaluation.of(
        "set",
        update,
        [Problem(f"p{i}", f"question {i}", str(i)) for i in range(len(first))],
        [
            [
                Sampled(f"{update}: {r}", 2, "stop"),
                Sampled("2", 1, "length"),
            ]
            for r in first
        ],
        [[Verdict(STATUS[r]), Verdict("correct")] for r in first],
    )


def chosen(before, after, count=20):
    return choose([Comparison(evaluation(0, before), evaluation(9, after))], count)


def test_changed_ones_come_first_then_the_rest():
    found = chosen([1, 0, 1, 0, None], [1, 1, 0, 0, None])
    assert [p.problem_id for p in found.pairs] == ["p1", "p2", "p0", "p3", "p4"]
    assert (found.problems, found.improved, found.worsened) == (5, 1, 1)
    pair = found.pairs[0]
    assert (pair.before.outcome, pair.after.outcome) == ("wrong", "right")
    assert (pair.before.text, pair.after.text) == ("0: 0", "9: 1")
    assert found.pairs[-1].before.outcome == "not scored"


def test_better_and_worse_in_proportion():
    before, after = [0] * 60 + [1] * 20, [1] * 60 + [0] * 20
    found = chosen(before, after)
    assert len(found.pairs) == 20
    assert sum(p.after.outcome == "wrong" for p in found.pairs) == 5


def test_a_single_bad_change_is_not_hidden():
    found = chosen([0] * 99 + [1], [1] * 99 + [0])
    assert sum(p.after.outcome == "wrong" for p in found.pairs) == 1
    assert len(found.pairs) == 20


def test_a_single_good_change_is_not_hidden():
    found = chosen([1] * 99 + [0], [0] * 99 + [1])
    assert sum(p.after.outcome == "right" for p in found.pairs) == 1
    assert len(found.pairs) == 20


def test_problems_are_matched_by_id():
    before, after = evaluation(0, [0, 1, 1]), evaluation(9, [1, 1, 0])
    order = [2, 0, 1]
    shuffled = {
        field.name: tuple(getattr(after, field.name)[i] for i in order)
        for field in dataclasses.fields(after)
        if isinstance(getattr(after, field.name), tuple)
    }
    arrays = {name: getattr(after, name)[order] for name in ("rewards", "lengths")}
    found = choose([Comparison(before, dataclasses.replace(after, **shuffled, **arrays))])
    outcomes = {p.problem_id: (p.before.outcome, p.after.outcome) for p in found.pairs}
    assert outcomes == {
        "p0": ("wrong", "right"),
        "p1": ("right", "right"),
        "p2": ("right", "wrong"),
    }


def test_partial_rewards_are_called_so():
    graded = dataclasses.replace(evaluation(0, [1]), rewards=np.array([[0.5, 1.0]]))
    assert (
        choose([Comparison(graded, evaluation(9, [1]))]).pairs[0].before.outcome == "partly right"
    )


def test_nothing_to_compare():
    assert choose([]).pairs == []
