"""Procedural tasks of reasoning-gym, and what is said where it is not installed."""

import sys

import pytest

from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.problems import load


@pytest.fixture
def gym():
    return pytest.importorskip("reasoning_gym")


def test_a_missing_package_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ResourceError, match="need the package reasoning-gym") as caught:
        load("reasoning_gym", task="chain_sum", count=2)
    assert caught.value.hint == 'pip install "offline-rlvr[reasoning-gym]"'


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "count is 0"),
        ({"count": "3"}, "count is '3'"),
        ({"count": 3, "seed": "a"}, "seed is 'a'"),
        ({"count": 3, "size": 4}, "no parameter 'size'"),
        ({}, "need the parameter 'count'"),
    ],
)
def test_arguments_out_of_range(wrong, message):
    with pytest.raises(ConfigError, match=message):
        load("reasoning_gym", task="chain_sum", **wrong)


def test_a_task_with_its_settings(gym):
    problems = load("reasoning_gym", task="chain_sum", count=5, seed=3, min_terms=2, max_terms=2)
    assert [p.id for p in problems] == [f"chain_sum-3-{i}" for i in range(5)]
    for problem in problems:
        terms = problem.question.split(":")[1].strip(" =")
        assert terms.count(" + ") + terms.count(" - ") == 1
        assert eval(terms) == int(problem.answer)


def test_the_seed_decides(gym):
    def questions(seed):
        problems = load("reasoning_gym", task="chain_sum", count=5, seed=seed)
        return [problem.question for problem in problems]

    assert questions(1) == questions(1) != questions(2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": "chain_sums"}, "unknown task 'chain_sums'"),
        ({"task": "chain_sum", "terms": 3}, "refuses its settings: .*'terms'"),
        ({"task": "chain_sum", "min_terms": -1}, "refuses its settings: min_terms must be"),
    ],
)
def test_wrong_tasks_and_settings(gym, wrong, message):
    with pytest.raises(ConfigError, match=message):
        load("reasoning_gym", count=2, **wrong)


def test_a_task_without_gold_answers_is_refused(gym):
    with pytest.raises(DataError, match="graph_color, problem 0: 'answer' is None"):
        load("reasoning_gym", task="graph_color", count=1)
