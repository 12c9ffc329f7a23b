"""The benchmarks run at tiny sizes and write their figures; how fast they are is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BENCH = REPOSITORY / "scripts/bench"
TRL_PYTHON = REPOSITORY / ".venv-trl/bin/python"


def bench(name, folder, *arguments):
    file = folder / "figures.json"
    process = subprocess.run(
        [sys.executable, BENCH / f"{name}.py", *arguments, "--json", file],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    figures = json.loads(file.read_text())
    assert figures["machine"]["cores"] >= 1
    assert figures["date"][:2] == "20"
    return figures, process.stdout


@pytest.mark.slow
def test_training_alone(tmp_path):
    short = ["--preset", "tiny", "--updates", "2", "--ladder-updates", "1"]
    figures, output = bench("train", tmp_path, *short, "--arms", "ours,control,ladder,reference")
    assert "speedup_vs_trl" not in figures
    assert figures["floor_ratio"] > 0
    assert 0.5 < figures["memory_with_reference"] < 2
    rungs = list(figures["ladder"])
    assert rungs[0] == "padded"
    assert rungs[-1] == "the trainer"
    assert all(rung in output for rung in rungs)
    for case in ("ragged", "control"):
        row = figures[case]["arms"]["ours"]
        assert 0 < row["least_s"] <= row["median_s"] <= row["most_s"]
        assert row["peak_bytes"] > 1 << 20


@pytest.mark.slow
@pytest.mark.skipif(not TRL_PYTHON.exists(), reason="scripts/bench_train makes .venv-trl")
def test_training_against_trl(tmp_path):
    short = ["--preset", "tiny", "--updates", "2", "--trl-batches", "4"]
    figures, _ = bench("train", tmp_path, *short, "--arms", "ours,trl,control")
    assert figures["logprob_max_diff"] < 1e-4
    assert figures["gradient_cosine"] > 0.9999
    assert figures["gradient_norm_ratio"] == pytest.approx(1, abs=1e-3)
    for name in ("speedup_vs_trl", "memory_vs_trl", "control_speedup", "floor_ratio"):
        assert figures[name] > 0
    assert set(figures["ragged"]["trl_settings"]) == {"TRL batch 4", "TRL batch 4 checkpointed"}


def test_trl_that_is_not_installed_is_said(tmp_path):
    with pytest.raises(AssertionError, match="--arms ours,control,ladder,reference"):
        bench("train", tmp_path, "--trl-python", "/nowhere/python")


def test_reading(tmp_path):
    small = ["--groups", "64", "--tokens", "8", "--preset", "tiny", "--updates", "1"]
    figures, _ = bench("pool", tmp_path, *small)
    assert figures["10x"]["tokens"] == 10 * figures["1x"]["tokens"] == 10 * 64 * 8 * 8
    assert figures["reading_vs_training"] > 0


def test_overhead(tmp_path):
    figures, _ = bench("overhead", tmp_path, "--preset", "tiny", "--updates", "2")
    assert 0 < figures["overhead"] < 1
    assert {"forward", "backward", "optimizer"} < set(figures["shares"])
    assert sum(figures["shares"].values()) == pytest.approx(1, abs=0.2)
