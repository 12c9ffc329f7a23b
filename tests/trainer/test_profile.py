"""`train --profile N` says where an update's time and memory go."""

import json

import pytest
import torch

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.phases import MEANING, Phases
from offline_rlvr.trainer.profile import UpdateProfile
from offline_rlvr.trainer.run import train


def test_a_profile_accounts_for_the_updates_it_measured(small_job, small_pool, tmp_path, capsys):
    plain, measured = tmp_path / "plain", tmp_path / "measured"
    config = load_config(small_job)
    train(config, small_pool, plain)
    capsys.readouterr()
    train(config, small_pool, measured, callbacks=[UpdateProfile(3, measured)])
    facts = json.loads((measured / "profile.json").read_text())
    assert facts["updates"] == [2, 4]
    # Refreshed before update 4, checkpoints after 2 and 4; evaluated after the last alone.
    assert facts["phases"].keys() == MEANING.keys() - {"evaluation", "reduction"}
    seconds = sum(phase["seconds_per_update"] for phase in facts["phases"].values())
    assert 0.5 * facts["seconds_per_update"] < seconds < facts["seconds_per_update"]
    assert all(phase["peak_mib"] > 0 for phase in facts["phases"].values())
    held = facts["memory_mib"]
    assert held["gradients"] == held["weights"] == pytest.approx(held["Adam's moments"] / 2, 0.01)
    ledger = list(read_rows(measured / "ledger.jsonl"))[1:4]
    responses = sum(row["tokens"] for row in ledger) / 3
    assert facts["tokens_per_update"] > responses
    words = (measured / "profile.md").read_text()
    assert words in capsys.readouterr().out
    assert all(f"| {name} |" in words for name in [*facts["phases"], "rest"])
    # Measuring changes nothing.
    losses = [[row["loss"] for row in read_rows(run / "ledger.jsonl")] for run in (plain, measured)]
    assert losses[0] == losses[1]


def test_shorter_runs_than_asked_for(small_job, small_pool, tmp_path, capsys):
    config = load_config(small_job, [("train.max_updates", "3")])
    three = tmp_path / "three"
    train(config, small_pool, three, callbacks=[UpdateProfile(50, three)])
    facts = json.loads((three / "profile.json").read_text())
    assert facts["updates"] == [2, 3]
    # The evaluation after the last update takes longer than the updates, and is no part of them.
    assert facts["evaluation_seconds"] > 0
    seconds = sum(phase["seconds_per_update"] for phase in facts["phases"].values())
    assert 0.5 * facts["seconds_per_update"] < seconds < facts["seconds_per_update"]
    one = load_config(small_job, [("train.max_updates", "1"), ("evaluation.problems", "null")])
    profile = UpdateProfile(50, three)
    train(one, small_pool, tmp_path / "one", callbacks=[profile])
    profile.say_if_none()
    assert "no profile: 1 updates were left" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--profile 0"):
        UpdateProfile(0, three)


def test_a_complete_run_has_no_profile_and_says_so(command, small_job, small_pool, tmp_path):
    place = ["--pool", small_pool, "--run", tmp_path / "run", "--train.max_updates", "2"]
    for output in ("written to", "no profile: 0 updates were left"):
        code, said = command("train", small_job, *place, "--profile", "1")
        assert (code, output in said) == (0, True), said


def test_a_phase_inside_another_counts_for_itself_alone():
    phases = Phases(torch.device("cpu"), on=True)
    with phases("anchors"):
        with phases("forward"):
            sum(range(200_000))
        with phases("forward"):
            pass
    assert phases.usage["forward"].seconds > 10 * phases.usage["anchors"].seconds > 0
    phases.on = False
    with phases("probe"):
        pass
    assert phases.usage.keys() == {"anchors", "forward"}
