"""Several processes train as one does: the same sums, one run folder, one end for all."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning.pytorch as pl
import psutil
import pytest
import torch
from safetensors.torch import load_file

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError
from offline_rlvr.policy import micro_batches, share_out
from offline_rlvr.stream import Plan, read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.ranks import count_devices
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

MIN_COSINE = 0.99999
NORM_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-6
#: A float32 log-prob differs by about this with the neighbors in its forward pass, nats.
KERNEL_NOISE = 1e-5
#: Adam's step is about the learning rate (1e-4) for each of 6 updates.
WEIGHT_TOLERANCE = 2e-5

UPDATES = [
    "coupled",
    "token-wise",
    "token-wise with a reference",
    "adapter",
    "fewer groups than processes",
    "groups in pieces",
]
#: The pool's 28 groups, the last update smaller than the others.
UNEVEN = ["--train.groups_per_update", "5", "--train.max_updates", "null"]
NO_EVALUATION = ["--evaluation.problems", "null"]


@pytest.fixture(scope="module")
def updates(small_pool, tmp_path_factory):
    """What single and paired processes got: (alone, first of two, second of two)."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("one_of_the_ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), rank, size, str(small_pool), str(folder)],
            env=environment,
        )
        for rank, size in (("0", "1"), ("0", "2"), ("1", "2"))
    ]
    try:
        assert [process.wait(240) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    names = ("0-of-1", "0-of-2", "1-of-2")
    return [torch.load(folder / f"{name}.pt", weights_only=False) for name in names]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_that_of_a_single_process(name, strategy, updates):
    alone, *both = updates
    one = alone[name]
    first, second = ((of if strategy == "ddp" else of["sharded"])[name] for of in both)
    assert first["gradient"].equal(second["gradient"])
    gradients = one["gradient"].double(), first["gradient"].double()
    assert torch.cosine_similarity(*gradients, 0) > MIN_COSINE
    assert gradients[0].norm() / gradients[1].norm() == pytest.approx(1, abs=NORM_TOLERANCE)
    for two in (first, second):
        assert two["loss"] == pytest.approx(one["loss"], abs=LOSS_TOLERANCE)
        assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-4, abs=1e-6)
        assert two["rows"].keys() == one["rows"].keys()
        torch.testing.assert_close(two["scored"], one["scored"], rtol=0, atol=KERNEL_NOISE)
    if strategy == "fsdp2":  # they can only go on together
        assert first["micro_batches"] == second["micro_batches"]


def test_all_processes_learn_what_one_of_them_met(updates):
    _, first, second = (of.get("agreements") for of in updates)
    assert first == second
    assert first["memory"][0] == "MemoryError"
    assert "can't allocate memory" in first["memory"][1]
    assert first["refusal"] == first["both"] == ("QualityGateError", "not finite\n  -> look at it")
    assert first["none"] == [0, 10]


def test_a_failure_while_weights_are_sharded_is_each_process_s_own(updates):
    for rank, of in enumerate(updates[1:]):
        unfit, broken, memory = of["apart"]
        assert unfit == ("QualityGateError", f"of process {rank}")
        assert broken == ("RuntimeError", f"of process {rank}")
        assert memory[0] == "ResourceError"
        assert "an update of sharded weights cannot be done again at once" in memory[1]


def lengths_of(shares, sizes):
    return [sum(sizes[row] for slot in slots for row in slot.rows) for slots in shares]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("in_step", [False, True])
def test_groups_are_shared_out_evenly_and_once(ranks, in_step):
    generator = torch.Generator().manual_seed(0)
    responses = torch.randint(1, 60, (37, 4), generator=generator).tolist()
    prompts = torch.randint(1, 20, (37,), generator=generator).tolist()
    sizes = [p + sum(r) for p, r in zip(prompts, responses, strict=True)]
    shares = share_out(prompts, responses, 300, ranks, in_step=in_step)
    rows = [row for slots in shares for slot in slots for row in slot.rows]
    assert sorted(rows) == list(range(37))
    assert len({len(slots) for slots in shares}) == 1
    loads = lengths_of(shares, sizes)
    assert max(loads) - min(loads) <= max(sizes)
    for slots in shares:
        for slot in slots:
            assert len(slot.rows) == 1 or sum(sizes[row] for row in slot.rows) <= 300
    if ranks == 1:
        assert [slot.rows for slot in shares[0]] == micro_batches(prompts, responses, 300)


def test_forward_passes_are_lined_up():
    """One group of six passes, and three of one, for two devices."""
    responses = [[50] * 6, [5] * 6, [5] * 6, [5] * 6]
    (one, two) = share_out([10] * 4, responses, 60, 2, in_step=True)
    assert [(slot.rows, len(slot.pieces), slot.passes) for slot in one] == [
        ([0], 6, 6),
        ([], 0, 1),
        ([], 0, 1),
    ]
    assert [(slot.rows, len(slot.pieces), slot.passes) for slot in two] == [
        ([1], 1, 6),
        ([2], 1, 1),
        ([3], 1, 1),
    ]
    (alone, other) = share_out([10] * 4, responses, 60, 2)
    assert [slot.passes for slot in alone] == [6]
    assert [slot.passes for slot in other] == [1, 1, 1]


def test_devices_that_are_not_there_are_refused():
    assert count_devices("auto", "cpu") == 1
    assert count_devices(3, "cpu") == 3
    with pytest.raises(ConfigError, match="device"):
        count_devices(2, "cuda:0")


@pytest.fixture
def start_two(start, small_job, small_pool, tmp_path):
    """Starts the uneven training without evaluation on two devices of the CPU."""

    def run(name="run", *more, **options):
        job = [small_job, "--pool", small_pool, "--run", tmp_path / name, "--model.device", "cpu"]
        return start(
            "train", *job, "--train.devices", "2", *UNEVEN, *NO_EVALUATION, *more, **options
        )

    return run


def finish(process, code=0):
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


def weights_of(run):
    newest = checkpoints.newest(run / "checkpoints", print)
    return load_file(newest / "model/model.safetensors"), torch.load(newest / "optimizer.pt")


def assert_close_runs(run, other):
    """The same groups, and numbers that differ by rounding."""
    keys = ("update", "group_ids", "tokens")
    ledgers = [
        [[row[key] for key in keys] for row in read_rows(path / "ledger.jsonl")]
        for path in (run, other)
    ]
    assert ledgers[0] == ledgers[1]
    rows = zip(read_rows(run / "metrics.jsonl"), read_rows(other / "metrics.jsonl"), strict=True)
    for one, two in rows:
        assert one.keys() == two.keys()
        assert one["train/loss"] == pytest.approx(two["train/loss"], abs=LOSS_TOLERANCE)
        for key in one.keys() - {"time/update_s"}:
            assert one[key] == pytest.approx(two[key], rel=1e-3, abs=1e-5), key
        refreshed = one["update"] % 3 == 1
        for row in (one, two):
            assert (row["reference/log_ratio_nats"] == 0) == refreshed
    one, two = weights_of(run)[0], weights_of(other)[0]
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], rtol=0, atol=WEIGHT_TOLERANCE)


def wait_for_update(process, run, update):
    while process.poll() is None:
        if sum(1 for _ in read_rows(run / "ledger.jsonl")) >= update:
            return
        time.sleep(0.002)


def limit_files():
    """Smaller than a checkpoint's weights."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))


def test_the_command_trains_on_two_devices_whatever_stops_it(
    start_two, small_job, small_pool, tmp_path
):
    """The disk full, a follower killed, the command killed, asked to stop; then to the end."""
    straight, run = tmp_path / "straight", tmp_path / "run"
    output = finish(start_two("straight"))
    assert output.count("run: ") == 1
    assert "Warning" not in output

    process = start_two("full", preexec_fn=limit_files)
    assert finish(process, 5).count("error[resource]") == 1

    process = start_two()
    wait_for_update(process, run, 1)
    (follower,) = psutil.Process(process.pid).children()
    follower.kill()
    assert "the process of device 1 was ended by SIGKILL" in finish(process, 5)

    process = start_two()
    wait_for_update(process, run, 3)
    (follower,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    follower.wait(10)

    polite = tmp_path / "polite"
    process = start_two("polite", "--train.groups_per_update", "1")  # 24 updates: time to be asked
    wait_for_update(process, polite, 2)
    process.send_signal(signal.SIGTERM)
    assert finish(process, 75).count("type the same command again to continue") == 1
    applied = checkpoints.read_state(checkpoints.newest(polite / "checkpoints", print))["applied"]
    asked = Plan.load(polite / "plan.parquet").updates
    assert sum(1 for _ in read_rows(polite / "ledger.jsonl")) == applied < asked

    plan = Plan.load(run / "plan.parquet")
    assert "continuing after update" in finish(start_two())
    assert f"hold {len(plan.group_ids)} of {len(plan.group_ids)} groups" in verify_run(run)
    for one, two in zip(weights_of(run), weights_of(straight), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)

    single = tmp_path / "single"
    pairs = zip([*UNEVEN, *NO_EVALUATION][::2], [*UNEVEN, *NO_EVALUATION][1::2], strict=True)
    train(load_config(small_job, [(key[2:], text) for key, text in pairs]), small_pool, single)
    assert_close_runs(straight, single)
    sizes = [len(row["group_ids"]) for row in read_rows(single / "ledger.jsonl")]
    assert 0 < sizes[-1] < sizes[0]


def test_a_run_goes_on_with_more_devices_and_sharded_weights(
    command, small_job, small_pool, tmp_path
):
    single, run = tmp_path / "single", tmp_path / "run"
    train(load_config(small_job), small_pool, single)
    train(load_config(small_job, [("train.max_updates", "3")]), small_pool, run)
    place = ["--pool", small_pool, "--run", run, "--model.device", "cpu"]
    sharded = ["--train.devices", "2", "--train.strategy", "fsdp2"]
    code, output = command("train", small_job, *place, *sharded)
    assert code == 0, output
    assert "the run had 1 devices, now 2: sums round differently" in output
    assert "evaluated after update 6" in output
    assert_close_runs(run, single)
    state = weights_of(run)[1]["optimizer_states"][0]
    torch.testing.assert_close(
        state, weights_of(single)[1]["optimizer_states"][0], rtol=1e-2, atol=1e-6
    )
    # And back: what two devices wrote, one reads.
    (run / "checkpoints/update-000006/MANIFEST.json").unlink()
    train(load_config(small_job), small_pool, run)
    assert_close_runs(run, single)


def test_a_loss_that_is_not_finite_ends_all_processes_with_one_message(start_two):
    output = finish(start_two("run", "--train.learning_rate", "1e30"), 6)
    assert output.count("error[quality]") == 1
    assert "is not finite; no step was taken" in output
    assert "Traceback" not in output


class Breaks(pl.Callback):
    def on_train_batch_start(self, *args):
        raise RuntimeError("of this process alone")


def test_an_error_of_the_first_process_is_told_as_it_is(small_job, small_pool, tmp_path):
    places = [("train.devices", "2"), ("model.device", "cpu"), ("evaluation.problems", "null")]
    with pytest.raises(RuntimeError, match="of this process alone"):
        train(load_config(small_job, places), small_pool, tmp_path / "run", callbacks=[Breaks()])


def test_an_adapter_is_trained_on_two_devices(command, small_job, small_pool, tmp_path):
    options = ["--pool", small_pool, *NO_EVALUATION, "--train.max_updates", "3"]
    options += ["--model.lora.rank", "4", "--model.device", "cpu"]
    train(
        load_config(
            small_job,
            [
                ("evaluation.problems", "null"),
                ("train.max_updates", "3"),
                ("model.lora.rank", "4"),
                ("model.device", "cpu"),
            ],
        ),
        small_pool,
        tmp_path / "1",
    )
    run = ["--run", tmp_path / "2", "--train.devices", "2"]
    code, output = command("train", small_job, *options, *run)
    assert code == 0, output
    weights = []
    for devices in (1, 2):
        newest = checkpoints.newest(tmp_path / str(devices) / "checkpoints", print)
        weights.append(load_file(newest / "model/adapter_model.safetensors"))
        assert json.loads((newest / "state.json").read_text())["devices"] == devices
    torch.testing.assert_close(*weights, rtol=0, atol=WEIGHT_TOLERANCE)


def test_all_devices_take_the_same_decisions(start_two, tmp_path):
    """One that went on alone would wait for the others, and the test for it."""
    refresh = ["--reference.refresh_when", "{metric: reference/k3, above: 0, for: 1}"]
    adapt = ["--objective", "{name: proximal_kl, horizon: adaptive, variance_bound: 100}"]
    stop = ["--train.stop_when", "{metric: objective/horizon, above: 1, for: 3}"]
    output = finish(start_two("run", *refresh, *adapt, *stop))
    assert output.count("after update 5: stop: metric objective/horizon") == 1
    rows = {row["update"]: row.get("decisions") for row in read_rows(tmp_path / "run/ledger.jsonl")}
    kinds = {update: [d["decision"] for d in found or []] for update, found in rows.items()}
    both = ["refresh_reference", "adapt_objective"]
    assert kinds == {1: [], 2: both, 3: [], 4: both, 5: ["stop"]}
    assert "stopped by train.stop_when after update 5 of 6" in finish(
        start_two("run", *refresh, *adapt, *stop)
    )
    verify_run(tmp_path / "run")
