"""The queries of pools/README.md, run as they stand, against the pool's own reader."""

import pathlib
import re

import numpy as np
import pytest

from offline_rlvr.pool import Pool

REPOSITORY = pathlib.Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (REPOSITORY / "pools/README.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    pool = Pool.open("pools/tiny")
    return pool.read(pool.index.group_ids)


def run(name):
    found = {}
    exec(next(block for block in BLOCKS if f"import {name}" in block), found)
    return found


def test_duckdb(groups):
    found = run("duckdb")
    rows = found["responses"].order("group_id, response").fetchall()
    expected = [
        (g.group_id, g.problem_id, i, g.rewards[i], g.statuses[i], len(g.response_token_ids[i]), t)
        for g in groups
        for i, t in enumerate(g.texts)
    ]
    assert rows == expected
    rates = {row[0]: row[2] for row in found["pass_rates"].fetchall()}
    assert rates == {g.problem_id: g.rewards.mean() for g in groups}
    assert [row[2] for row in found["pass_rates"].fetchall()] == sorted(rates.values())
    pairs = [(r, p) for g in groups for r, p in zip(g.rewards, g.behavior_logprobs, strict=True)]
    logprobs = np.concatenate([p for _, p in pairs])
    assert found["tokens"].count("*").fetchall()[0][0] == len(logprobs)
    lowest = [row[-1] for row in found["surprising"].fetchall()]
    assert lowest == np.sort(logprobs)[:10].tolist()
    means = {reward: nats for reward, nats, _ in found["by_reward"].fetchall()}
    for reward in (0.0, 1.0):
        own = np.concatenate([p for r, p in pairs if r == reward]).astype(np.float64)
        assert means[reward] == pytest.approx(-own.mean(), rel=1e-9)


def test_polars(groups):
    table = run("polars")["table"]
    assert table["pass_rate"].to_list() == sorted(g.rewards.mean() for g in groups)
    assert set(table["problem_id"]) == {g.problem_id for g in groups}
