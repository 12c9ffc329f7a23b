"""What tests share: the command line, and one small real pool of the built-in model."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

# Sums over threads round differently: one thread here, as in the processes that tests start.
torch.set_num_threads(1)


#: A job of a few seconds: 6 updates of 4 groups, two reference windows.
SMALL_JOB = """
problems: {name: arithmetic, count: 200, seed: 3}
pool: {group_size: 4, mixed_groups: 24, chunk_groups: 16, probe_groups: 3}
sampling: {max_new_tokens: 24}
objective: {name: ggpo, beta: 1.0}
reference: {refresh_every: 3}
train:
  groups_per_update: 4
  max_updates: 6
  learning_rate: 1e-4
  micro_batch_tokens: 200
  checkpoint_every: 2
  probe_every: 1
evaluation:
  problems: {name: arithmetic, split: heldout, count: 5, seed: 1}
  k: 4
"""


def pytest_collection_modifyitems(config, items):
    """The soak takes too long for every day: it is left out unless it is asked for."""
    if "soak" in (config.option.markexpr or ""):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing that a test keeps is found by, or comes from, the user's own runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFFLINE_RLVR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def soak_seed():
    """Of what happens at random moments; `SOAK_SEED` sets it, and the soak prints it."""
    return int(os.environ.get("SOAK_SEED", "0"))


@pytest.fixture(scope="session")
def small_job(tmp_path_factory):
    """The config file of the small job."""
    path = tmp_path_factory.mktemp("job") / "small job é.yaml"
    path.write_text(SMALL_JOB)
    return path


@pytest.fixture(scope="session")
def small_pool(small_job, tmp_path_factory):
    """A pool of the small job, built once by the real builder. Read only: copy it to change it."""
    from offline_rlvr.config import load_config
    from offline_rlvr.pool.build import build_pool

    path = tmp_path_factory.mktemp("pools") / "small pool é"
    build_pool(load_config(small_job), path)
    return path


@pytest.fixture
def own_pool(small_pool, tmp_path):
    """A copy of the small pool to damage."""
    return pathlib.Path(shutil.copytree(small_pool, tmp_path / "pool"))


@pytest.fixture
def drive():
    """Crashes a building or a training (`faults/crash/`) at every `step`-th call: its counts."""

    def run(what, mode, folder, step=1):
        driver = pathlib.Path(__file__).parent / "faults" / "crash" / f"{what}.py"
        done = subprocess.run(
            [sys.executable, str(driver), mode, str(folder), str(step)],
            capture_output=True,
            text=True,
            timeout=3600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture
def start():
    """Starts `offline-rlvr ...` in its own process, one thread and no hub; output in one stream."""
    started = []

    def run(*arguments, **options):
        code = "from offline_rlvr.cli.main import main; main()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            **options,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def command(start):
    """Runs `offline-rlvr ...` to its end; returns (exit code, output)."""

    def run(*arguments, **options):
        process = start(*arguments, **options)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output

    return run


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub in this process, reached by real HTTP."""
    from huggingface_hub import constants

    path = pathlib.Path(__file__).with_name("hub_server.py")
    spec = importlib.util.spec_from_file_location("hub_server", path)
    hub_server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hub_server)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub_server.running() as server:
        yield server


@pytest.fixture
def api(hub):
    """The hub's own client, logged in."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.url, token=hub.token)
