"""Gold, answer, verdict: the field's forty pairs and further pairs of the same kinds."""

import json
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def read(name):
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


FIELD = read("verifier_pairs.jsonl")
MORE = read("more_pairs.jsonl")


def test_every_field_pair_gets_the_mathematically_right_verdict(verifier):
    verdicts = verifier.score([(p["gold"], p["answer"]) for p in FIELD])
    wrong = [
        (p, v)
        for p, v in zip(FIELD, verdicts, strict=True)
        if (v.reward == 1.0) != p["correct"] or v.reward is None
    ]
    assert len(FIELD) == 40
    assert wrong == []


def test_further_pairs_in_a_box(verifier):
    verdicts = verifier.score([(p["gold"], rf"So \boxed{{{p['answer']}}}.") for p in MORE])
    wrong = [
        (p, v)
        for p, v in zip(MORE, verdicts, strict=True)
        if (v.reward == 1.0) != p["correct"] or v.reward is None
    ]
    assert wrong == []
    assert min(Counter(p["correct"] for p in MORE).values()) > 50


@pytest.mark.parametrize("wrapped", ["${}$", "$${}$$", r"\({}\)", r"\[{}\]", r"\boxed{{{}}}"])
def test_delimiters_do_not_change_a_verdict(verifier, wrapped):
    pairs = [p for p in MORE if "$" not in p["gold"] + p["answer"]][::4]
    items = [
        (wrapped.format(p["gold"]) if "boxed" not in wrapped else p["gold"],
         rf"\boxed{{{wrapped.format(p['answer'])}}}")
        for p in pairs
    ]  # fmt: skip
    got = [v.reward == 1.0 for v in verifier.score(items)]
    assert got == [p["correct"] for p in pairs]


def test_order_and_duplicates_are_kept(verifier):
    items = [("1", r"\boxed{1}"), (r"\sqrt{4}", r"\boxed{2}"), ("1", r"\boxed{2}")] * 3
    assert [v.status for v in verifier.score(items)] == ["correct", "correct", "incorrect"] * 3
    assert verifier.score([]) == []


@pytest.mark.parametrize(
    ("gold", "usable"),
    [
        ("42", True),
        (r"2\sqrt{3}", True),
        ("2, 3, 5", True),
        (r"\text{east}", True),
        ("x < 3", True),
        (r"2\sqrt{3", False),
        ("x+", False),
        ("3 4 ) foo", False),
        (r"\foo{3}", False),
        ("", False),
        ("  ", False),
        ("2 + #", False),
        ("x = ", False),
        (r"5\sqrt{2} \newcommand", False),
    ],
)
def test_a_gold_is_read_whole_or_refused(verifier, gold, usable):
    (reason,) = verifier.check_gold([gold])
    assert (reason is None) == usable
    (boxed, bare) = verifier.score([(gold, r"\boxed{7}"), (gold, "no box at all")])
    expected = ("incorrect", "no_answer") if usable else ("gold_unparseable",) * 2
    assert (boxed.status, bare.status) == expected
    assert (boxed.reward is None) == (not usable)


def test_verdict_texts_are_short_and_on_one_line(verifier):
    (verdict,) = verifier.score([("$7$", "\\boxed{x +\n" + "1+" * 400 + "1}")])
    assert verdict.status == "incorrect"
    assert len(verdict.answer) == 200
    assert "\n" not in verdict.answer
