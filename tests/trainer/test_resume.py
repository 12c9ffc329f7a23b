"""Stopped and continued, however, wherever: the same weights bit for bit, every group once."""

import json
import os
import random
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from offline_rlvr import durable
from offline_rlvr.config import load_config
from offline_rlvr.errors import BusyError, ConfigError, DataError, IncompatibleError
from offline_rlvr.evaluation import read_evaluations
from offline_rlvr.lock import WriterLock, writer_of
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.boundary import StopRequest
from offline_rlvr.trainer.evaluate import evaluate_run
from offline_rlvr.trainer.fit import make_module
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.setup import set_up
from offline_rlvr.trainer.status import RunStatus
from offline_rlvr.trainer.verify import verify_run

LAST = "checkpoints/update-000006"
NO_EVALUATION = ("evaluation.problems", "null")


def job(small_job, *overrides):
    return load_config(small_job, [NO_EVALUATION, *overrides])


@pytest.fixture(scope="module")
def straight(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "straight"
    train(job(small_job), small_pool, path)
    return path


def facts_of(run):
    """Everything that must not depend on interruptions."""
    metrics = [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_rows(run / "metrics.jsonl")
    ]
    ledger = [
        {key: value for key, value in row.items() if key != "attempt"}
        for row in read_rows(run / "ledger.jsonl")
    ]
    return metrics, ledger, json.loads((run / LAST / "state.json").read_text())


def assert_same(run, straight):
    assert facts_of(run) == facts_of(straight)
    one, two = (load_file(path / LAST / "model/model.safetensors") for path in (run, straight))
    assert one.keys() == two.keys()
    assert all(one[name].equal(two[name]) for name in one)
    one, two = (torch.load(path / LAST / "optimizer.pt") for path in (run, straight))
    torch.testing.assert_close(one, two, rtol=0, atol=0)
    verify_run(run)


@pytest.fixture
def start_training(start, small_job, small_pool, tmp_path):
    """Starts the small training without evaluation in its own process."""
    run = tmp_path / "run"
    arguments = ["--pool", small_pool, "--run", run, "--evaluation.problems", "null"]
    return lambda *more: start("train", small_job, *arguments, *more)


def wait_for_update(process, run, update):
    while process.poll() is None:
        if sum(1 for _ in read_rows(run / "ledger.jsonl")) >= update:
            return
        time.sleep(0.002)


def test_killed_in_the_middle_the_same_command_finishes(start_training, straight, tmp_path):
    run, chance = tmp_path / "run", random.Random(0)
    for update in (1, 3, 5):
        process = start_training()
        wait_for_update(process, run, update)
        time.sleep(chance.random() * 0.05)
        process.kill()
        process.communicate()
    process = start_training()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "continuing after update" in output
    assert_same(run, straight)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_ends_at_an_update_boundary(start_training, tmp_path, number):
    run = tmp_path / "run"
    many = ["--train.groups_per_update", "1", "--train.max_updates", "24"]
    process = start_training(*many)
    wait_for_update(process, run, 1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 75, output
    assert "type the same command again to continue" in output
    applied = checkpoints.read_state(checkpoints.newest(run / "checkpoints", print))["applied"]
    assert sum(1 for _ in read_rows(run / "ledger.jsonl")) == applied < 24
    assert start_training(*many).wait(240) == 0
    assert "the weights of update 24" in verify_run(run)


def test_a_second_ctrl_c_stops_at_once():
    with StopRequest().listening() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_killed_writers_left_is_removed(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(job(small_job, ("train.max_updates", "3")), small_pool, run)
    left = ["checkpoints/.tmp-update-000001/model/x", "responses/.tmp-x", "evaluations/.tmp-x"]
    for name in left:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).touch()
    train(job(small_job), small_pool, run)
    assert not list(run.rglob(".tmp-*"))


def test_a_run_whose_ledger_was_changed_is_not_continued(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(job(small_job, ("train.max_updates", "3")), small_pool, run)
    rows = list(read_rows(run / "ledger.jsonl"))
    rows[1]["loss"] = 0.0
    (run / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="lines of updates 1 to 3 in the ledger are not those"):
        train(job(small_job), small_pool, run)


def test_fewer_checkpoints_are_kept_when_told_after_the_end(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(job(small_job, ("train.keep_checkpoints", "3")), small_pool, run)
    assert len(list((run / "checkpoints").iterdir())) == 3
    train(job(small_job, ("train.keep_checkpoints", "1")), small_pool, run)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["update-000006"]
    assert [path.name for path in (run / "anchors").iterdir()] == ["reference-000004.safetensors"]


def test_a_start_that_was_refused_leaves_nothing_to_the_next(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(IncompatibleError, match="the untouched policy differs"):
        train(load_config(small_job, [("train.max_noise_floor", "1e-12")]), small_pool, run)
    assert [e.n for e in read_evaluations(run)] == [4]
    (run / "loggers.json").write_text("{}")  # of a service that saw that evaluation
    train(load_config(small_job, [("evaluation.k", "2")]), small_pool, run)
    assert [e.n for e in read_evaluations(run)] == [2, 2]
    assert not (run / "loggers.json").exists()


def test_an_update_out_of_turn_is_not_trained_on(small_job, small_pool, tmp_path):
    config, applied = job(small_job), []
    module = make_module(config, set_up(config, small_pool), tmp_path, Ranks(), applied.append)
    module.applied = 2
    for update in (2, 4):
        with pytest.raises(DataError, match=f"received update {update}, expected update 3"):
            module.training_step(module.data[update - 1], 0)
    assert applied == []


def test_a_finished_run_says_so_and_changes_nothing(small_job, small_pool, straight, capsys):
    before = (straight / "ledger.jsonl").read_bytes()
    train(job(small_job), small_pool, straight)
    assert "6 updates are applied already" in capsys.readouterr().out
    assert (straight / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "flip", "missing", "no manifest"])
def test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_it_used(
    small_job, small_pool, straight, tmp_path, capsys, damage
):
    run = tmp_path / "run"
    train(job(small_job), small_pool, run)
    newest = run / LAST
    file = newest / ("MANIFEST.json" if damage == "no manifest" else "model/model.safetensors")
    data = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(data[:-1])
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    train(job(small_job), small_pool, run)
    assert "moved to update-000006.damaged" in capsys.readouterr().out
    assert (run / (LAST + ".damaged")).is_dir()
    assert_same(run, straight)


def test_when_every_checkpoint_is_bad_a_person_decides(small_job, small_pool, straight, tmp_path):
    run = tmp_path / "run"
    train(job(small_job), small_pool, run)
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.json").write_text("{")
    for _ in range(2):  # asked again, the same answer
        with pytest.raises(DataError, match="no whole checkpoint is left"):
            train(job(small_job), small_pool, run)
    for folder in (run / "checkpoints").iterdir():
        shutil.rmtree(folder)
    train(job(small_job), small_pool, run)
    assert_same(run, straight)


def test_a_start_that_failed_before_the_first_update_does_not_bind_the_run(
    small_job, small_pool, straight, tmp_path
):
    run = tmp_path / "run"
    with pytest.raises(ConfigError):
        train(job(small_job, ("model.lora", "{target_modules: nowhere}")), small_pool, run)
    train(job(small_job), small_pool, run)
    assert_same(run, straight)


def test_more_updates_inside_an_anchor_window_are_refused_before_any_work(
    small_job, small_pool, straight, tmp_path
):
    run = tmp_path / "run"
    train(job(small_job, ("train.max_updates", "2")), small_pool, run)
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(IncompatibleError, match=r"updates 1 to 2\) ends before update 3"):
        train(job(small_job), small_pool, run)
    assert (run / "config.yaml").read_bytes() == before
    assert RunStatus.of(run).state == "complete"
    verify_run(run)
    other = tmp_path / "other"
    train(job(small_job, ("train.max_updates", "3")), small_pool, other)
    train(job(small_job), small_pool, other)
    assert_same(other, straight)
    assert RunStatus.of(other).asked == 6, "the stored config says what was asked last"


def test_fewer_updates_than_applied_train_nothing(small_job, small_pool, straight, capsys):
    train(job(small_job, ("train.max_updates", "2")), small_pool, straight)
    assert "6 updates are applied already, 2 were asked for" in capsys.readouterr().out
    train(job(small_job), small_pool, straight)


def test_a_run_that_cannot_be_evaluated_says_why(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(load_config(small_job, [("train.max_updates", "1")]), small_pool, run)
    lock = WriterLock(run)
    try:
        with pytest.raises(BusyError):
            evaluate_run(run)
    finally:
        lock.release()
    shutil.rmtree(run / "evaluations")
    files = evaluate_run(run)
    assert sorted(files) == sorted((run / "evaluations").iterdir())
    shutil.rmtree(run / "checkpoints/update-000001")
    with pytest.raises(DataError, match="has no checkpoint yet"):
        evaluate_run(run)
    assert writer_of(run) is None
    train(job(small_job, ("train.max_updates", "1")), small_pool, tmp_path / "without")
    with pytest.raises(ConfigError, match="names no held-out problems"):
        evaluate_run(tmp_path / "without")


@pytest.mark.parametrize("text", ['{"plan": 3}', "[]", "{", '{"plan": {}, "pool": {}}'])
def test_a_damaged_run_json_is_told(small_job, small_pool, straight, tmp_path, text):
    shutil.copytree(straight, tmp_path / "run")
    (tmp_path / "run/run.json").write_text(text)
    with pytest.raises(DataError, match=r"run\.json"):
        train(job(small_job), small_pool, tmp_path / "run")


def test_a_missing_anchor_is_an_error_and_not_made_from_moved_weights(
    small_job, small_pool, tmp_path
):
    run = tmp_path / "run"
    train(job(small_job, ("train.max_updates", "5")), small_pool, run)
    next((run / "anchors").glob("reference-000004*")).unlink()
    with pytest.raises(DataError, match="reference table"):
        train(job(small_job), small_pool, run)


def test_another_config_is_refused_and_names_what_differs(small_job, small_pool, straight):
    with pytest.raises(IncompatibleError, match=r"train.learning_rate: 0.0001 -> 0.5"):
        train(job(small_job, ("train.learning_rate", "0.5")), small_pool, straight)


def test_a_pool_that_has_grown_is_refused(small_job, own_pool, tmp_path):
    from offline_rlvr.pool.build import build_pool

    train(job(small_job, ("train.max_updates", "1")), own_pool, tmp_path / "run")
    build_pool(job(small_job, ("pool.mixed_groups", "40")), own_pool)
    with pytest.raises(IncompatibleError, match="pool: commit"):
        train(job(small_job), own_pool, tmp_path / "run")


def test_two_trainings_of_one_run_do_not_mix(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lock = WriterLock(run)
    try:
        with pytest.raises(BusyError, match=f"process {os.getpid()}"):
            train(job(small_job), small_pool, run)
    finally:
        lock.release()


def test_a_moved_pool_and_run_continue(small_job, own_pool, straight, tmp_path):
    train(job(small_job, ("train.max_updates", "3")), own_pool, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    pool, run = tmp_path / "elsewhere/p", tmp_path / "elsewhere/r"
    own_pool.rename(pool)
    (tmp_path / "run").rename(run)
    train(job(small_job), pool, run)
    assert_same(run, straight)


def test_the_name_of_a_new_run_is_durable(small_job, small_pool, tmp_path, monkeypatch):
    synced, sync = [], durable.sync_folder
    monkeypatch.setattr(durable, "sync_folder", lambda path: (synced.append(path), sync(path)))
    train(job(small_job, ("train.max_updates", "1")), small_pool, tmp_path / "runs" / "new")
    assert {tmp_path, tmp_path / "runs"} <= set(synced)
