"""`model.compile`: an ordinary training in every respect but speed."""

import pytest
import torch
from safetensors.torch import load_file

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

#: torch.compile warns of its own ways, which nobody here could mend.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_continued_and_evaluated_it_ends_in_the_same_weights(small_job, small_pool, tmp_path):
    torch._dynamo.reset()
    job = [("model.compile", "true")]
    once, twice = tmp_path / "once", tmp_path / "twice"
    train(load_config(small_job, job), small_pool, once)
    for updates in ("3", "6"):
        changes = [*job, ("train.max_updates", updates)]
        train(load_config(small_job, changes), small_pool, twice)
    weights = [
        load_file(run / "checkpoints/update-000006/model/model.safetensors")
        for run in (once, twice)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    rows = list(read_rows(twice / "metrics.jsonl"))
    assert rows[0]["drift/noise_floor"] < 1e-4
    assert rows[0]["reference/log_ratio_nats"] == rows[3]["reference/log_ratio_nats"] == 0
    assert rows[-1]["drift/abs_log_ratio"] > 1e-3
    assert len(list((twice / "evaluations").iterdir())) == 3
    verify_run(twice)
    torch._dynamo.reset()


def test_it_does_not_go_with_fsdp2(small_job, small_pool, tmp_path):
    changes = [("model.compile", "true"), ("train.devices", "2"), ("train.strategy", "fsdp2")]
    with pytest.raises(ConfigError, match="does not go with"):
        train(load_config(small_job, changes), small_pool, tmp_path / "run")


def test_a_machine_without_a_compiler_is_told(
    command, small_job, small_pool, tmp_path, monkeypatch
):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "nothing compiled yet"))
    arguments = ["--pool", small_pool, "--run", tmp_path / "run", "--model.compile", "true"]
    code, output = command("train", small_job, *arguments)
    assert code == ConfigError.exit_code, output
    assert "cannot be compiled here" in output
    assert "g++" in output
