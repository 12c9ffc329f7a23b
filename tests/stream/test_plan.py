"""The plan: a pure function of pool, selection and seed; each group exactly once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.stream import Plan, check_ledger, make_plan


def plan_of(ids, seed=0, size=4, drop_last=False, pool_hash="p"):
    return make_plan(
        ids, pool_hash=pool_hash, seed=seed, groups_per_update=size, drop_last=drop_last
    )


@given(
    st.sets(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 9)
)
def test_every_group_is_trained_exactly_once(ids, size, seed):
    plan = plan_of(ids, seed, size)
    seen = [group for update in range(1, plan.updates + 1) for group in plan.groups(update)]
    assert sorted(seen) == sorted(ids)
    assert all(len(plan.groups(update)) == size for update in range(1, plan.updates))
    assert 1 <= len(plan.groups(plan.updates)) <= size


def test_the_plan_ignores_global_random_state_and_input_order():
    first = plan_of(range(50))
    random.seed(1)
    assert plan_of(reversed(range(50))).group_ids == first.group_ids


def test_seed_pool_and_selection_each_change_the_order():
    plan = plan_of(range(50))
    others = [plan_of(range(50), seed=1), plan_of(range(50), pool_hash="q"), plan_of(range(1, 51))]
    assert all(other.group_ids != plan.group_ids for other in others)
    assert len({plan.hash, *(other.hash for other in others)}) == 4


def test_drop_last_lists_what_it_leaves_out():
    plan = plan_of(range(10), size=4, drop_last=True)
    assert plan.updates == 2
    assert sorted((*plan.group_ids, *plan.unused)) == list(range(10))
    assert len(plan.unused) == 2


@pytest.mark.parametrize(("ids", "drop"), [([], False), ([1, 2, 3], True)])
def test_no_update_is_an_error(ids, drop):
    with pytest.raises(ConfigError, match="groups"):
        plan_of(ids, size=4, drop_last=drop)


def test_saved_and_loaded_plans_are_equal(tmp_path):
    plan = plan_of(range(10), size=4, drop_last=True)
    plan.save(tmp_path / "plan.parquet")
    assert Plan.load(tmp_path / "plan.parquet") == plan


@pytest.mark.parametrize("size", [0, 10, -1])
def test_a_damaged_plan_is_refused(tmp_path, size):
    path = tmp_path / "plan.parquet"
    plan_of(range(10)).save(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="plan"):
        Plan.load(path)


@pytest.mark.parametrize("update", [0, 4])
def test_an_update_outside_the_plan_is_refused(update):
    with pytest.raises(DataError, match="not in this plan"):
        plan_of(range(10)).groups(update)


def ledger(plan, updates):
    return [{"update": u, "group_ids": list(plan.groups(u))} for u in updates]


def test_the_ledger_of_a_clean_run_is_accepted():
    plan = plan_of(range(10))
    check_ledger(plan, ledger(plan, [1, 2, 3]), applied=3)


@pytest.mark.parametrize("updates", [[1, 3], [1, 1, 2], [2, 1, 3], [1, 2], [1, 2, 3, 3]])
def test_skipped_repeated_reordered_and_missing_updates_are_found(updates):
    plan = plan_of(range(10))
    with pytest.raises(DataError, match="ledger"):
        check_ledger(plan, ledger(plan, updates), applied=3)


def test_other_groups_than_planned_are_found():
    plan = plan_of(range(10))
    rows = ledger(plan, [1, 2, 3])
    rows[1]["group_ids"][0], rows[2]["group_ids"][0] = (
        rows[2]["group_ids"][0],
        rows[1]["group_ids"][0],
    )
    with pytest.raises(DataError, match="update 2 did not train the groups of the plan"):
        check_ledger(plan, rows, applied=3)


def test_a_selection_that_holds_a_group_twice_is_refused():
    with pytest.raises(DataError, match="a group twice"):
        make_plan([1, 2, 1], pool_hash="p", seed=0, groups_per_update=1)
