"""Every gold of the usual test sets, boxed, against itself. Skipped where the sets are absent."""

import itertools
import json
from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"
SETS = ["math500", "gsm8k_test", "amc23", "aime24", "svamp", "mawps"]

#: Neighbors in sorted order that differ only in a unit one of them lacks.
UNIT_ONLY = [
    ("120", r"120^\circ"), ("15", r"15\mbox{ cm}^2"), ("30", r"30^\circ"), ("36", r"36^\circ"),
]  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_every_gold_is_usable_and_equals_itself(verifier, name):
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}")
    golds = [json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()]
    assert [r for r in verifier.check_gold(golds) if r is not None] == []
    verdicts = verifier.score([(gold, rf"Thus $\boxed{{{gold}}}$.") for gold in golds])
    assert [(g, v) for g, v in zip(golds, verdicts, strict=True) if v.status != "correct"] == []


def test_no_gold_equals_the_next_different_one(verifier):
    path = DATA / "math500.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}")
    golds = sorted({json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()})
    pairs = [(a, rf"\boxed{{{b}}}") for a, b in itertools.pairwise(golds)]
    accepted = [
        pair
        for pair, verdict in zip(pairs, verifier.score(pairs), strict=True)
        if verdict.reward == 1.0
    ]
    assert accepted == [(gold, rf"\boxed{{{answer}}}") for gold, answer in UNIT_ONLY]
