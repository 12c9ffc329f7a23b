"""The micro-batch plan is an even partition into whole groups of similar length."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_rlvr.errors import ConfigError
from offline_rlvr.policy import micro_batches

lengths = st.integers(1, 40)
groups = st.lists(st.tuples(lengths, st.lists(lengths, min_size=3, max_size=3)), max_size=40)


@given(groups, st.integers(1, 500))
@settings(deadline=None)
def test_every_group_once_and_within_the_budget(rows, budget):
    prompts, responses = [p for p, _ in rows], [r for _, r in rows]
    plan = micro_batches(prompts, responses, budget)
    assert sorted(row for piece in plan for row in piece) == list(range(len(rows)))
    assert all(plan)
    size = [p + sum(r) for p, r in rows]
    for piece in plan:
        assert len(piece) == 1 or sum(size[row] for row in piece) <= budget
    assert plan == micro_batches(tuple(prompts), [tuple(r) for r in responses], budget)


def test_a_group_above_the_budget_is_alone():
    assert micro_batches([1, 50, 1], [[1, 1], [60, 60], [1, 1]], 20) == [[1], [0, 2]]


def test_pieces_are_even():
    plan = micro_batches([10] * 9, [[10] * 9] * 9, 800)  # 100 tokens a group: 8 fit, 1 is left
    assert [len(piece) for piece in plan] == [5, 4]


def test_similar_lengths_go_together():
    longest = [5, 90, 7, 88, 6, 91, 89]
    plan = micro_batches([5] * 7, [[n, 1] for n in longest], 200)
    assert plan == [[5], [1, 6], [3, 2, 4, 0]]  # 97, 191 and 130 tokens


def test_no_groups_and_no_budget():
    assert micro_batches([], [], 10) == []
    with pytest.raises(ConfigError, match="token_budget is 0"):
        micro_batches([1], [[1]], 0)
