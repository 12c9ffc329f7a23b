"""`run list/status/tail` and `resume`: what they say of a run, and that they go on with it."""

import shutil
import signal
import time

import pytest

from offline_rlvr.config import load_config
from offline_rlvr.lock import writer_of
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.status import RunStatus, list_runs


@pytest.fixture(scope="module")
def finished(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs é") / "ggpo 1"
    train(load_config(small_job), small_pool, path)
    return path


def test_a_complete_run(finished, command):
    status = RunStatus.of(finished)
    assert (status.state, status.applied, status.asked, status.saved) == ("complete", 6, 6, 6)
    assert [update for update, _, _ in status.accuracy] == [0, 6]
    code, output = command("run", "status", finished)
    assert code == 0
    assert "complete, 6 of 6 updates applied, 6 saved, 1 attempt\n" in output
    assert "next:      offline-rlvr report" in output
    code, output = command("run", "list", finished.parent)
    assert code == 0
    assert output.splitlines()[1].startswith("ggpo 1  complete  6/6      ggpo")
    code, output = command("run", "tail", finished, "--lines", "2", "--follow")
    assert code == 0
    assert [line[:8] for line in output.splitlines()] == ["update 5", "update 6"]


def test_a_folder_without_runs(tmp_path, command):
    assert list_runs(tmp_path / "none") == []
    code, output = command("run", "list", tmp_path)
    assert code == 0
    assert "no runs in" in output
    for verb in (["run", "status"], ["run", "tail"], ["run", "verify"], ["resume"]):
        code, output = command(*verb, tmp_path)
        assert code == 3
        assert "is not a run" in output


def test_a_stopped_run_is_resumed_by_name(
    small_job, small_pool, finished, tmp_path, start, command
):
    run = tmp_path / "stopped run"
    process = start("train", small_job, "--pool", small_pool, "--run", run)
    deadline = time.monotonic() + 120
    while not (run / "ledger.jsonl").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert RunStatus.of(run).state == "running"
    assert f"process {process.pid} on host" in (writer_of(run) or "")
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        status = RunStatus.of(run)
        assert status.saved <= status.applied
    assert process.returncode == 75
    status = RunStatus.of(run)
    assert status.state == "stopped"
    assert 0 < status.saved == status.applied < 6
    code, output = command("run", "status", run)
    assert code == 0
    assert "next:      offline-rlvr resume" in output
    code, output = command("resume", run, "--train.learning_rate", "0.1")
    assert code == 4
    assert "train.learning_rate: " in output
    moved = shutil.copytree(small_pool, tmp_path / "moved pool")
    code, output = command("resume", run, "--pool", moved)
    assert code == 0, output
    assert RunStatus.of(run).state == "complete"
    rows = [list(read_rows(path / "ledger.jsonl")) for path in (run, finished)]
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]
    code, output = command("resume", run)
    assert code == 0
    assert "6 updates are applied already" in output
