"""Filters of the config: what a run trains on, what it records, and what it refuses later."""

import json

import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.pool import Pool
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train


def job(small_job, *overrides):
    shorter = [("train.max_updates", "1"), ("evaluation.problems", "null")]
    return load_config(small_job, [*shorter, *overrides])


def test_a_run_trains_on_the_filtered_groups_and_keeps_the_funnel(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(job(small_job, ("selection.max_correct", "1")), small_pool, run)
    index = Pool.open(small_pool).index
    correct = dict(zip(index.group_ids.tolist(), index.correct.sum(1).tolist(), strict=True))
    (row,) = read_rows(run / "ledger.jsonl")
    assert [correct[group_id] for group_id in row["group_ids"]] == [1] * 4
    facts = json.loads((run / "run.json").read_text())
    recorded = facts["selection"]
    assert recorded["mixed"] == index.mixed.sum()
    assert recorded["removed"]["max_correct"] > 0
    assert recorded["mixed"] - sum(recorded["removed"].values()) == recorded["left"]
    assert facts["plan"]["groups"] == recorded["left"]
    with pytest.raises(IncompatibleError, match=r"selection\.max_correct: 1 -> None"):
        train(job(small_job, ("train.max_updates", "2")), small_pool, run)


def test_the_dry_run_shows_what_each_filter_takes(command, small_job, small_pool, tmp_path):
    code, output = command(
        "train", small_job, "--pool", small_pool, "--run", tmp_path / "run", "--dry-run",
        "--selection.max_correct", "2", "--selection.drop_truncated", "true",
    )  # fmt: skip
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("selection")]
    for word in ("mixed groups, probe takes ", "max_correct takes", "drop_truncated takes", "left"):
        assert word in line


def test_nothing_left_is_an_error_before_anything_is_made(small_job, small_pool, tmp_path):
    config = job(small_job, ("selection.max_response_tokens", "1"))
    with pytest.raises(ConfigError, match=r"left to train on.*max_response_tokens takes") as caught:
        train(config, small_pool, tmp_path / "run")
    assert "loosen `selection`" in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_bounds_that_exclude_each_other_are_refused(small_job):
    with pytest.raises(ConfigError, match="selection: expected min_correct to be at most max_corr"):
        job(small_job, ("selection.min_correct", "3"), ("selection.max_correct", "2"))
