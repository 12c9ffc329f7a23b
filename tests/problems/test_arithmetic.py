"""Arithmetic: right answers, disjoint splits, exact capacity; the package's `load`, `dedupe`."""

import ast
import operator
import re
import subprocess
import sys

import pytest

from offline_rlvr.errors import ConfigError
from offline_rlvr.problems import dedupe, load
from offline_rlvr.problems.arithmetic import HELDOUT_ONE_IN, split_of
from offline_rlvr.records import Problem

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value_of(node: ast.AST) -> int:
    """An independent reading of the question: Python's own grammar."""
    if isinstance(node, ast.Expression):
        return value_of(node.body)
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](value_of(node.left), value_of(node.right))
    assert isinstance(node, ast.Constant)
    return node.value


def test_answers_are_right_and_questions_differ():
    problems = load("arithmetic", count=6000, seed=3)
    for problem in problems:
        assert value_of(ast.parse(problem.question, mode="eval")) == int(problem.answer)
        assert str(int(problem.answer)) == problem.answer
    assert len({p.question for p in problems}) == len({p.id for p in problems}) == 6000


def test_difficulty_is_spread():
    problems = load("arithmetic", count=300)
    kinds = {re.sub(r"\d+", lambda m: "n" * len(m[0]), p.question) for p in problems}
    assert {"n + n", "nnn + nnn", "nn - nn", "nn * n", "nn + n * n", "(n + n) * n"} <= kinds
    assert all(
        re.search(r"\d{3}", p.question) is None for p in load("arithmetic", count=300, max_digits=2)
    )
    assert all(len(p.question.split()) == 3 for p in load("arithmetic", count=300, two_step=False))


@pytest.mark.parametrize("operations", ["+", "*", "+-", "*+", "+-*"])
def test_only_the_operations_that_are_asked_for_occur(operations):
    questions = [p.question for p in load("arithmetic", count=300, operations=operations)]
    assert {c for q in questions for c in q if c in "+-*"} == set(operations)
    if operations == "+-*":
        assert questions == [p.question for p in load("arithmetic", count=300)]


def test_splits_share_no_question_whatever_the_seed():
    train = {p.question for seed in range(4) for p in load("arithmetic", count=2000, seed=seed)}
    heldout = {
        p.question
        for seed in range(4)
        for p in load("arithmetic", count=500, seed=seed, split="heldout")
    }
    assert not train & heldout
    assert {split_of(q) for q in train} == {"train"}
    assert {split_of(q) for q in heldout} == {"heldout"}
    share = (
        sum(split_of(f"{a} + {b}") == "heldout" for a in range(100) for b in range(100)) / 10_000
    )
    assert share == pytest.approx(1 / HELDOUT_ONE_IN, abs=0.01)


PINNED_HELDOUT = ["1 + 26", "1 + 29", "1 + 38", "1 + 43", "1 + 50", "1 + 51", "1 + 53"]


def test_the_split_of_a_question_never_moves():
    # Pinned: a pool trained on yesterday's train split must not meet today's held-out one.
    assert [
        q for q in (f"1 + {b}" for b in range(60)) if split_of(q) == "heldout"
    ] == PINNED_HELDOUT


def test_seeded():
    assert load("arithmetic", count=50, seed=1) == load("arithmetic", count=50, seed=1)
    assert load("arithmetic", count=50, seed=1) != load("arithmetic", count=50, seed=2)
    # A longer list begins with the shorter one.
    assert load("arithmetic", count=50)[:20] == load("arithmetic", count=20)


def test_capacity_is_exact():
    with pytest.raises(ConfigError, match=r"only (\d+) exist") as caught:
        load("arithmetic", count=10**5, max_digits=1, two_step=False)
    most = int(re.search(r"only (\d+) exist", str(caught.value))[1])  # type: ignore[index]
    expected = {f"{a} {op} {b}" for a in range(10) for b in range(10) for op in "+-*"}
    assert {p.question for p in load("arithmetic", count=most, max_digits=1, two_step=False)} == {
        question for question in expected if split_of(question) == "train"
    }
    with pytest.raises(ConfigError, match="exist"):
        load("arithmetic", count=most + 1, max_digits=1, two_step=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"count": 5, "split": "test"},
        {"count": 5, "max_digits": 4},
        {"count": 5, "operations": ""},
        {"count": 5, "operations": "+/"},
    ],
)
def test_arguments_out_of_range(wrong):
    with pytest.raises(ConfigError, match="arithmetic:"):
        load("arithmetic", **wrong)


def test_unknown_names_get_the_nearest():
    with pytest.raises(ConfigError, match=r"'arithmetics'; allowed: arithmetic, files") as caught:
        load("arithmetics", count=1)
    assert "did you mean 'arithmetic'" in str(caught.value)
    with pytest.raises(ConfigError, match="did you mean 'count'"):
        load("arithmetic", counts=1)
    with pytest.raises(ConfigError, match="need the parameter 'count'"):
        load("arithmetic")
    with pytest.raises(ConfigError, match="unknown problem source"):
        load("__init__")


def test_dedupe_keeps_the_first_of_exact_text():
    a, b, c = Problem("a", "1 + 1", "2"), Problem("b", "1 + 1", "3"), Problem("c", "1 + 1 ", "2")
    assert dedupe([a, b, c, a]) == ([a, c], 2)


def test_no_torch():
    code = (
        "import sys; from offline_rlvr.problems import load; load('arithmetic', count=5);"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
