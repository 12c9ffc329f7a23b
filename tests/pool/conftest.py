"""Small pools to break."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_rlvr.pool import PoolWriter
from offline_rlvr.records import Group, Problem, Response, Verdict

K = 4
VOCAB = 151_936


def make_group(
    group_id: int, correct: int = 1, *, seed: int | None = None, **changes: Any
) -> Group:
    """A group of K responses, the first `correct` of them right."""
    rng = np.random.default_rng(group_id if seed is None else seed)
    responses = []
    for _ in range(K):
        length = int(rng.integers(1, 9))
        ids = tuple(int(i) for i in rng.integers(0, VOCAB, length))
        logprobs = tuple(float(-x) for x in rng.exponential(size=length))
        responses.append(Response(ids, logprobs, f"text {ids[0]} é", "stop", seed=int(ids[0])))
    verdicts = [
        Verdict("correct" if i < correct else "incorrect", gold="7", answer=str(i))
        for i in range(K)
    ]
    fields = {
        "group_id": group_id,
        "problem": Problem(f"p-{group_id}", f"{group_id} + 4?", str(group_id + 4)),
        "prompt_token_ids": tuple(range(1, 4 + group_id % 3)),
        "responses": tuple(responses),
        "verdicts": tuple(verdicts),
    }
    return Group(**(fields | changes))


def make_identity(**changes: Any) -> dict[str, Any]:
    return {
        "model": {"name": "tiny", "revision": "abc"},
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "group_size": K,
        "vocab_size": VOCAB,
        "versions": {"torch": "2.13"},
    } | changes


def build(path: Path, *parts: list[Group]) -> Path:
    """A pool with one commit per part."""
    with PoolWriter.create_or_open(path, make_identity()) as writer:
        for part in parts:
            writer.append(part, "exact-1")
    return path


@pytest.fixture
def group() -> Callable[..., Group]:
    return make_group


@pytest.fixture
def identity() -> Callable[..., dict[str, Any]]:
    return make_identity


@pytest.fixture
def build_pool() -> Callable[..., Path]:
    return build


@pytest.fixture
def pool_path(tmp_path: Path) -> Path:
    """Two commits, ids 0-4 and 5-9; correct counts 0 1 2 3 4 0 1 2 3 4."""
    groups = [make_group(i, correct=i % 5) for i in range(10)]
    return build(tmp_path / "pools" / "a pool é", groups[:5], groups[5:])
