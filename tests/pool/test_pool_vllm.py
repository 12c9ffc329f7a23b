"""A pool built with vLLM's engine, through the command line: dies, continues, is trained on."""

import importlib.util
import time

import psutil
import pytest

from offline_rlvr.pool import Pool

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def wait_for(condition, seconds=400):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.02)
    return found


def engine_of(build):
    """The engine's processes, the one that leads them first."""
    family = psutil.Process(build.pid).children(recursive=True)
    return sorted(
        (p for p in family if p.name().startswith("VLLM")), key=lambda p: "Core" not in p.name()
    )


def gone(processes):
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def test_an_engine_that_dies_loses_its_chunk_only_and_the_pool_is_trained_on(
    start, command, small_job, tmp_path
):
    pool, run = tmp_path / "pool é", tmp_path / "run"
    arguments = ("pool", "build", small_job, "-o", pool, "--generation.name", "vllm")
    arguments += ("--pool.mixed_groups", "60", "--pool.chunk_groups", "8")

    build = start(*arguments)
    wait_for(lambda: (pool / "commits" / "00000002.json").exists() or build.poll() is not None)
    engine = engine_of(build)
    assert len(engine) >= 2
    engine[0].kill()
    output, _ = build.communicate(timeout=120)
    assert build.returncode == 5, output
    assert "error[resource]: the vLLM engine died" in output
    assert "type the same command again" in output
    assert gone(engine)
    kept = Pool.open(pool)
    assert len(kept) >= 16
    assert len(kept) % 8 == 0
    texts = [group.texts for group in kept.read(range(len(kept)))]

    build = start(*arguments)
    engine = wait_for(lambda: engine_of(build) or build.poll() is not None)
    output, _ = build.communicate(timeout=400)
    assert build.returncode == 0, output
    assert gone(engine)
    whole = Pool.open(pool)
    assert whole.index.group_ids.tolist() == list(range(len(whole)))
    assert [group.texts for group in whole.read(range(len(kept)))] == texts
    assert whole.index.mixed.sum() >= 63
    assert not {seed for group in whole.read([0]) for seed in group.seeds} - {None}

    code, output = command("pool", "verify", pool, "--deep", "16")
    assert code == 0, output
    code, output = command(
        "train", small_job, "--pool", pool, "--run", run, "--train.max_updates", "3"
    )
    assert code == 0, output
    code, output = command("run", "verify", run)
    assert code == 0, output
