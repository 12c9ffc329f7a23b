"""A training that is killed, cut from power, refused, starved or misled; what it says and leaves.

After every fault the same command ends in the weights, bit for bit, of an undisturbed run. Kills
by signal, damaged checkpoints and settings are in `tests/trainer/test_resume.py`, what
`run verify` proves in `tests/trainer/test_verify.py`.
"""

import errno
import json
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file

from offline_rlvr.config import load_config
from offline_rlvr.errors import ResourceError
from offline_rlvr.lock import WriterLock
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

NO_EVALUATION = ("--evaluation.problems", "null")
LAST = "checkpoints/update-000006"


#: Every so many calls, or different disks, are tried every day, and all of them in the soak.
ALL = pytest.param(1, marks=pytest.mark.soak)


@pytest.mark.parametrize("step", [29, ALL])
def test_sigkill_before_every_call_that_touches_the_disk(drive, tmp_path, step):
    assert drive("training", "kill", tmp_path, step)["calls"] > 150


@pytest.mark.parametrize("step", [17, ALL])
def test_power_cut_before_every_call_that_touches_the_disk(drive, tmp_path, step):
    assert drive("training", "image", tmp_path, step)["images"] > 100


@pytest.fixture(scope="module")
def straight(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "straight"
    train(load_config(small_job, [("evaluation.problems", "null")]), small_pool, path)
    return path


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run é"


@pytest.fixture
def train_command(cli, small_job, small_pool, run):
    """Types the one train command of these tests; returns (exit code, output)."""

    def typed(*overrides, run=run):
        return cli(
            "train", small_job, "--pool", small_pool, "--run", run, *NO_EVALUATION, *overrides
        )

    return typed


@pytest.fixture
def ends_well(train_command, straight, run):
    """The same command goes on and ends in the weights of the undisturbed run."""

    def check(run=run):
        code, output = train_command(run=run)
        assert code == 0, output
        verify_run(run)
        one, two = (load_file(path / LAST / "model/model.safetensors") for path in (run, straight))
        assert all(one[name].equal(two[name]) for name in two)

    return check


def saved(run):
    """Updates of the checkpoints, all of which are whole."""
    found = sorted((run / "checkpoints").glob("update-??????"))
    for path in found:
        checkpoints.verify(path)
    return [checkpoints.read_state(path)["applied"] for path in found]


def fails_for(name, part, code, armed):
    """An `os` function that fails where a path or a descriptor is of this part, once `armed`."""
    real = getattr(os, name)

    def call(*args, **kwargs):
        what = args[-1] if isinstance(args[-1], (str, Path)) else args[0]
        if isinstance(what, int):
            what = os.readlink(f"/proc/self/fd/{what}")
        if part in str(what) and armed():
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("name", "part", "code"),
    [
        ("write", "run.json", errno.ENOSPC),
        ("write", "plan.parquet", errno.EDQUOT),
        ("write", "config.yaml", errno.EIO),
        ("mkdir", "checkpoints", errno.ENOSPC),
        ("mkdir", "anchors", errno.ENOSPC),
        ("mkdir", "responses", errno.ENOSPC),
        ("write", "metrics.jsonl", errno.ENOSPC),
        ("fsync", "ledger.jsonl", errno.EIO),
    ],
)
def test_a_disk_that_refuses_from_the_start(
    train_command, ends_well, run, monkeypatch, name, part, code
):
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails_for(name, part, code, lambda: True))
        refused(train_command(), part)
    assert saved(run) == []
    ends_well()


def refused(done, part):
    code, output = done
    assert (code, "Traceback" in output) == (5, False), output
    assert "error[resource]: no space left while writing" in output or "(Input/output" in output
    assert part in output
    assert "then type the same command again; everything committed so far is kept" in output


@pytest.mark.parametrize(
    ("name", "part", "code"),
    [
        ("write", "metrics.jsonl", errno.ENOSPC),
        ("write", "ledger.jsonl", errno.ENOSPC),
        ("fsync", "ledger.jsonl", errno.EIO),
        ("write", "anchors/", errno.ENOSPC),
        ("fsync", "anchors", errno.EIO),
        ("write", "responses/", errno.EDQUOT),
        ("replace", "responses/", errno.EIO),
        ("mkdir", "checkpoints/.tmp-update-000004", errno.ENOSPC),
        ("fsync", "checkpoints/.tmp-update-000004", errno.EIO),
        ("rename", "checkpoints/update-000004", errno.ENOSPC),
    ],
)
def test_a_disk_that_refuses_after_the_first_checkpoint(
    train_command, ends_well, run, monkeypatch, name, part, code
):
    armed = (run / "checkpoints/update-000002").exists
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails_for(name, part, code, armed))
        refused(train_command(), part.removeprefix("checkpoints/.tmp-"))
    assert saved(run) == [2]
    ends_well()


@pytest.mark.parametrize(("limit", "file"), [(2 << 20, "weights"), (5 << 20, "optimizer")])
def test_a_limit_of_the_file_size(train_command, ends_well, run, limit, file):
    """A real refusal, in the middle of a file that safetensors or torch writes by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        refused(train_command(), "checkpoints/update-000002 (File too large)")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert saved(run) == []
    ends_well()


class FillsTheDisk(CSVLogger):
    """Leaves `room` bytes of a file system from an update on."""

    def __init__(self, disk, update, room):
        super().__init__(disk)
        self.filler, self.update, self.room = disk / "filler", update, room

    def log_metrics(self, metrics, step=None):
        if step == self.update:
            facts = os.statvfs(self.filler.parent)
            self.filler.write_bytes(bytes(max(0, facts.f_bavail * facts.f_frsize - self.room)))

    def save(self):
        pass


@pytest.mark.parametrize(
    ("update", "room", "left"),
    [(1, 0, []), (2, 0, [2]), (2, 4 << 20, [2]), (3, 8 << 20, [2]), (5, 64 << 10, [2, 4])],
)
def test_a_disk_that_gets_full_on_the_way(
    small_job, small_pool, mount, ends_well, tmp_path, update, room, left
):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount(disk, "-t", "tmpfs", "-o", "size=64m", "none")
    config = load_config(small_job, [("evaluation.problems", "null")])
    filler = FillsTheDisk(disk, update, room)
    if left:  # the update before is done, and its checkpoint is there, before the disk gets full
        filler.update += 1 - update % 2 if room else 0
    with pytest.raises(ResourceError, match="no space left while writing") as caught:
        train(config, small_pool, disk / "run", loggers=[filler])
    assert str(disk / "run") in caught.value.message
    assert set(saved(disk / "run")) <= {2, 4}
    filler.filler.unlink()
    ends_well(disk / "run")


def test_a_disk_that_is_too_small_is_refused_before_any_work(
    train_command, ends_well, mount, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount(disk, "-t", "tmpfs", "-o", "size=24m", "none")
    code, output = train_command(run=disk / "run")
    assert (code, "Traceback" in output) == (5, False), output
    assert f"{disk / 'run'} needs about 27." in output
    assert "3 checkpoints of 9.1" in output
    assert "MiB are free" in output
    assert "train.keep_checkpoints" in output
    assert not (disk / "run/ledger.jsonl").exists()
    assert train_command("--train.keep_checkpoints", "1", run=disk / "run")[0] == 0
    ends_well(disk / "run")


def test_a_folder_that_may_not_be_written(
    start, small_job, small_pool, tmp_path, obey_permissions, train_command, ends_well, run
):
    assert train_command("--train.max_updates", "3")[0] == 0
    run.chmod(0o555)
    arguments = ("train", small_job, "--pool", small_pool, "--run", run, *NO_EVALUATION)
    process = start(*arguments, preexec_fn=obey_permissions)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 5, output
    assert f"cannot write {run}" in output
    assert "make the folder writable or choose another one" in output
    run.chmod(0o755)
    assert saved(run) == [2, 3]
    ends_well()


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "ledger.discarded.jsonl"])
def test_a_torn_last_line(train_command, ends_well, run, name):
    """What a kill in the middle of a write leaves; nothing of it was acknowledged."""
    assert train_command("--train.max_updates", "3")[0] == 0
    # The checkpoint of update 3 is gone, so its lines are moved aside.
    for path in (run / "checkpoints/update-000003").rglob("*"):
        if path.is_file():
            path.unlink()
    with (run / name).open("a") as file:
        file.write('{"update": 4, "attem')
    ends_well()
    discarded = [row["update"] for row in read_rows(run / "ledger.discarded.jsonl")]
    assert discarded == [3]


@pytest.mark.parametrize(
    ("what", "overrides"),
    [
        ("policy log-probs", ("--train.learning_rate", "3e38")),
        ("loss", ("--objective.beta", "1e-310")),
        # Gradients of 1e300 times the drift since the reference was refreshed.
        ("gradient norm", ("--objective", "{name: grpo, kl_coef: 1.0e+300}")),
    ],
)
def test_an_update_that_is_not_finite_takes_no_step(train_command, run, what, overrides):
    every = ("--train.checkpoint_every", "1")
    code, output = train_command(*overrides, *every)
    assert (code, "Traceback" in output) == (6, False), output
    applied = [row["update"] for row in read_rows(run / "ledger.jsonl")]
    assert f"update {len(applied) + 1}: the {what} is not finite; no step was taken" in output
    groups = json.loads(output.split("Groups: ")[1].split("\n")[0])
    assert 0 < len(groups) <= 4, "those of the micro-batch or of the update"
    assert applied == list(range(1, len(applied) + 1))
    assert saved(run)[-1:] == applied[-1:], "the update before is kept"
    if applied:
        verify_run(run)
    assert train_command(*overrides, *every)[0] == 6


def test_two_trainings(train_command, ends_well, run):
    assert train_command("--train.max_updates", "3")[0] == 0
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and ".lock" not in p.name}
    lock = WriterLock(run)
    try:
        code, output = train_command()
    finally:
        lock.release()
    assert code == 7, output
    assert f"{run} is being written by process {os.getpid()} on host " in output
    assert {p: p.read_bytes() for p in before} == before
    ends_well()


def test_a_run_that_is_complete_says_so(train_command, ends_well, run):
    ends_well()
    code, output = train_command()
    assert (code, "6 updates are applied already" in output) == (0, True), output


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("--train.seed", "1"),
        ("--train.learning_rate", "1e-3"),
        ("--train.groups_per_update", "2"),
        ("--train.precision", "bf16-mixed"),
        ("--train.weight_decay", "0.1"),
        ("--reference.refresh_every", "2"),
        ("--objective.beta", "2.0"),
        ("--objective.name", "pg"),
        ("--selection.min_correct", "2"),
        ("--model.dtype", "bfloat16"),
        ("--pool.probe_groups", "2"),
        ("--evaluation.k", "2"),
    ],
)
def test_a_setting_that_may_not_change(train_command, straight, key, value):
    before = (straight / "ledger.jsonl").read_bytes()
    code, output = train_command(key, value, run=straight)
    assert code == 4, output
    assert f"{key[2:]}: " in output
    assert "go back to the stored settings; these may change: " in output
    assert (straight / "ledger.jsonl").read_bytes() == before


def test_settings_that_may_change(train_command, ends_well, run, cli):
    from offline_rlvr.trainer.folder import MAY_CHANGE

    assert train_command("--train.max_updates", "3", "--train.checkpoint_every", "1")[0] == 0
    changed = {
        "train.max_updates": "6",
        "train.checkpoint_every": "4",
        "train.micro_batch_tokens": "200",  # lower ones round otherwise
        "train.keep_checkpoints": "3",
        "train.keep_best": "false",  # true wants an evaluation
        "train.stop_when": "{metric: weights/ess, below: 1e-9}",
        "train.devices": "1",
        "train.strategy": "fsdp2",
        "evaluation.every": "2",
        "evaluation.generation": "{name: hf}",
        "model.device": "cpu",
        "logger": "{name: csv}",
    }
    assert changed.keys() == MAY_CHANGE
    code, output = train_command(*(word for k, v in changed.items() for word in (f"--{k}", v)))
    assert code == 0, output
    ends_well()
    code, output = cli("resume", "--help")
    words = " ".join(output.replace("│", " ").split())
    assert all(key in words for key in MAY_CHANGE), output


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_at_random(ends_well, start, small_job, small_pool, run, soak_seed, kills):
    chance = random.Random(soak_seed)
    for update in sorted(chance.sample(range(6), kills)):
        process = start("train", small_job, "--pool", small_pool, "--run", run, *NO_EVALUATION)
        while process.poll() is None:
            if run.exists() and sum(1 for _ in read_rows(run / "ledger.jsonl")) >= update:
                break
            time.sleep(0.002)
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.communicate()
    ends_well()
