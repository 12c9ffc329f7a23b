"""Precisions: what is float32 whatever is asked for, and the noise floor that is reported."""

import pytest
import torch
from safetensors.torch import load_file

from offline_rlvr.config import load_config
from offline_rlvr.pool.build import build_pool
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train

#: Mean |difference| of the untouched policy to the stored log-probs, nats per token: measured
#: 1e-6 in float32, 0.005 in bfloat16.
FLOORS = {"32-true": (0, 1e-4), "bf16-mixed": (1e-3, 0.02)}
SHORT = [("train.max_updates", "3"), ("evaluation.problems", "null"), ("train.probe_every", "3")]


@pytest.fixture
def finished(small_job, small_pool, tmp_path):
    def run(precision, *changes):
        config = load_config(small_job, [*SHORT, ("train.precision", precision), *changes])
        train(config, small_pool, tmp_path / precision)
        return tmp_path / precision

    return run


@pytest.mark.parametrize("precision", FLOORS)
def test_weights_and_moments_are_float32_and_the_floor_is_told(precision, finished):
    run = finished(precision)
    folder = run / "checkpoints" / "update-000003"
    weights = load_file(folder / "model" / "model.safetensors")
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)["optimizer_states"][0]
    moments = [state["exp_avg"] for state in optimizer["state"].values()]
    assert {tensor.dtype for tensor in [*weights.values(), *moments]} == {torch.float32}
    rows = list(read_rows(run / "metrics.jsonl"))
    low, high = FLOORS[precision]
    assert low <= rows[0]["drift/noise_floor"] <= high
    # The anchor is scored by the same kernels, so it has no noise floor of its own.
    assert rows[0]["reference/log_ratio_nats"] == 0
    assert all(row["train/grad_norm"] > 0.01 for row in rows)


def test_mixed_precision_trains_as_float32_does(finished):
    runs = [finished(precision) for precision in FLOORS]
    norms = [[row["train/grad_norm"] for row in read_rows(run / "metrics.jsonl")] for run in runs]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def test_a_sampler_in_bfloat16_is_trained_on_float32_weights(small_job, tmp_path):
    """In bfloat16 a step of the learning rate would leave most weights where they are."""
    config = load_config(small_job, [*SHORT, ("model.dtype", "bfloat16")])
    build_pool(config, tmp_path / "pool")
    train(config, tmp_path / "pool", tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    before, after = (
        load_file(folder / f"update-{update:06d}" / "model" / "model.safetensors")
        for update in (2, 3)
    )
    moved = torch.cat([(after[name] != before[name]).flatten() for name in before])
    assert moved.float().mean() > 0.9
    (first, *_) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert 1e-4 < first["drift/noise_floor"] < 0.02
