"""The command line as people type it: help, exit codes, messages, escapes."""

import os
import re
import subprocess
import sys
import time

import pytest


def test_help_lists_the_verbs_and_needs_no_torch(command):
    code, output = command("--help")
    assert code == 0
    verbs = ("quickstart", "pool", "train", "evaluate", "report", "compare", "run", "resume", "lab")
    for verb in verbs:
        assert verb in output
    assert "75 interrupted" in output


def test_help_of_train_tells_of_overrides(command):
    code, output = command("train", "--help")
    assert code == 0
    assert "--objective.name" in output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["trian"], 2, "train"),
        (["train", "none.yaml", "--pool", "p", "--run", "r"], 2, "cannot read the config"),
        (["train", "{job}", "--pool", "none", "--run", "r"], 2, "no pool at none"),
        (["train", "{job}", "--pool", "{pool}"], 2, "run"),
        (["train", "{job}", "--pool", "{pool}", "--run", "r", "--trian.seed", "1"], 2, "'train'"),
        (["train", "{job}", "--pool", "{pool}", "--run", "r", "--train.seed"], 2, "needs a value"),
        (["train", "{job}", "stray", "--pool", "{pool}", "--run", "r"], 2, "unexpected argument"),
        (
            ["train", "{job}", "--pool", "{pool}", "--run", "r", "--objective.name", "gpo"],
            2,
            "ggpo",
        ),
        (["pool", "stats", "{job}"], 2, "no pool at"),
        (["pool", "show", "{pool}", "99999"], 3, "99999"),
        (["report", "none"], 3, "not a run"),
        (["evaluate", "none"], 3, "not a run"),
        (["compare"], 2, "no run is named"),
        (["compare", "none", "none2"], 3, "not a run"),
        (["run", "verify", "none"], 3, "not a run"),
    ],
)
def test_mistakes_end_in_an_exit_code_and_a_plain_message(
    command, small_job, small_pool, tmp_path, arguments, code, words
):
    filled = [text.format(job=small_job, pool=small_pool) for text in arguments]
    got, output = command(*filled, cwd=tmp_path)
    assert (got, "Traceback" in output) == (code, False), output
    assert words in output
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_pool_stats_and_show_print_what_is_there(command, small_pool):
    code, output = command("pool", "stats", small_pool)
    assert code == 0
    assert "mixed" in output
    assert "builtin" in output
    code, output = command("pool", "show", small_pool, "0", "--logprobs")
    assert code == 0
    assert output.count(r"\boxed") >= 4


def test_dry_run_prints_the_arithmetic_and_starts_nothing(command, small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    code, output = command("train", small_job, "--pool", small_pool, "--run", run, "--dry-run")
    assert code == 0, output
    assert re.search(r"6 of \d+ updates of 4 groups", output)
    for word in ("tokens", "micro-batches", "memory", "reference"):
        assert word in output
    assert not run.exists()


def test_config_keys_and_show(command, small_job):
    code, output = command("config", "keys")
    assert code == 0
    assert "train.learning_rate: float" in output
    code, output = command("config", "show", small_job, "--train.seed", "5")
    assert code == 0
    assert "seed: 5" in output


def test_objectives_are_listed_with_their_parameters(command):
    code, output = command("objectives")
    assert code == 0
    for name in ("ggpo", "proximal_kl", "grpo_tis"):
        assert re.search(rf"^{name} ", output, re.MULTILINE)
    assert "beta=0.01" in output


def test_a_reader_that_goes_away_is_no_error(small_pool):
    code = "from offline_rlvr.cli.main import main; main()"
    arguments = [sys.executable, "-c", code, "config", "keys"]
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        arguments, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert process.stderr == ""
    assert process.returncode == 141


def test_ctrl_c_while_building_keeps_what_is_committed(start, small_job, tmp_path):
    pool = tmp_path / "pool"
    process = start("pool", "build", small_job, "-o", pool, "--pool.mixed_groups", "150")
    deadline = time.monotonic() + 120
    while not list(pool.glob("commits/*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.terminate()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert "type the same command again" in output
    assert start("pool", "stats", pool).wait(120) == 0
