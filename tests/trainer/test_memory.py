"""The token budget comes from the free memory, and running out of it costs nothing but time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from offline_rlvr.batch import PoolBatch
from offline_rlvr.config import load_config
from offline_rlvr.policy import Policy
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints, memory
from offline_rlvr.trainer.fit import make_module
from offline_rlvr.trainer.memory import (
    ModelShape,
    choose_pack_tokens,
    choose_token_budget,
    free_memory,
)
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.setup import set_up
from offline_rlvr.trainer.verify import verify_run

CPU = torch.device("cpu")
GIB = 1 << 30
#: Adam moves every weight by about the learning rate (1e-3); other rounding turns few of them.
MEAN_MOVE = 1e-5


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_an_update_that_runs_out_of_memory_is_done_again_whole(small_job, small_pool, tmp_path):
    script = Path(__file__).with_name("out_of_memory.py")
    done = subprocess.run(
        [sys.executable, str(script), str(small_job), str(small_pool), str(tmp_path)],
        env=os.environ | {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "with 2,048 tokens per forward pass; the whole update is done again with 1,024" in (
        done.stdout
    )
    run = Path(done.stdout.split("found: ")[1].strip())
    plenty = tmp_path / "plenty"
    proof = verify_run(run)
    assert "hold 24 of" in proof
    ledgers = [list(read_rows(path / "ledger.jsonl")) for path in (plenty, run)]
    assert [row["group_ids"] for row in ledgers[0]] == [row["group_ids"] for row in ledgers[1]]
    assert len(ledgers[1]) == 2
    weights = [
        load_file(path / "checkpoints" / "update-000002" / "model" / "model.safetensors")
        for path in (plenty, run)
    ]
    moved = [(weights[0][name] - value).abs().mean() for name, value in weights[1].items()]
    assert max(moved) < MEAN_MOVE


def test_a_budget_stays_what_it_was_when_a_run_continues(small_job, small_pool, tmp_path):
    """Also one that was chosen: the free memory of another day gives other rounding."""
    run = tmp_path / "run"
    changes = [("train.micro_batch_tokens", "null"), ("evaluation.problems", "null")]
    train(load_config(small_job, [*changes, ("train.max_updates", "3")]), small_pool, run)
    folder = checkpoints.newest(run / "checkpoints", print)
    assert checkpoints.read_state(folder)["micro_batch_tokens"] == memory.MOST_TOKENS["cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(memory.MOST_TOKENS, "cpu", 1024)
        train(load_config(small_job, changes), small_pool, run)
    rows = list(read_rows(run / "metrics.jsonl"))
    assert {row["train/micro_batch_tokens"] for row in rows} == {memory.MOST_TOKENS["cpu"]}
    assert len(rows) == 6


def test_another_error_is_not_taken_for_a_full_memory(small_job, small_pool, tmp_path):
    config = load_config(small_job)
    module = make_module(config, set_up(config, small_pool), tmp_path, Ranks(), print)

    def fail():
        raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError, match="of another kind"):
        module._within_memory(fail)


def test_a_budget_may_be_lowered_on_the_way(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    plain = [("evaluation.problems", "null")]
    train(load_config(small_job, [*plain, ("train.max_updates", "3")]), small_pool, run)
    for tokens in ("100", "400"):  # a higher one changes nothing
        more = [("train.micro_batch_tokens", tokens), ("train.max_updates", "6")]
        train(load_config(small_job, [*plain, *more]), small_pool, run)
    rows = list(read_rows(run / "metrics.jsonl"))
    assert [row["train/micro_batch_tokens"] for row in rows] == [200] * 3 + [100] * 3
    assert "update 6" in verify_run(run)


def shape(**changes) -> ModelShape:
    facts = {"weights": 10**9, "trained": 10**9, "layers": 24, "hidden": 2048, "heads": 2048}
    facts |= {"inner": 8192}
    return ModelShape(**(facts | changes))


@pytest.mark.parametrize(
    ("free_gib", "changes", "checkpointing", "budget"),
    [
        # (0.8 x 40 GiB - 12 GB - 0.75 GiB) / 6.29 MB = 3,427 tokens
        (40, {}, False, 2048),
        (40, {}, True, 16384),  # 0.2 MB a token, and one layer
        (40, {"trained": 10**7}, False, 4096),  # LoRA: 5,315
        (80, {"trained": 10**7}, False, 8192),  # 10,777
        (8, {}, False, memory.LEAST_TOKENS),  # not even the states fit: try
        (4000, {}, False, memory.MOST_TOKENS["cpu"]),
    ],
)
def test_the_budget_fills_the_free_memory(free_gib, changes, checkpointing, budget, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: free_gib * GIB)
    assert choose_token_budget(shape(**changes), CPU, checkpointing) == budget


@pytest.mark.parametrize(
    ("hidden", "inner", "tokens"),
    [(256, 1024, 8192), (576, 1536, 2048), (2048, 8192, memory.LEAST_TOKENS), (16, 16, 16384)],
)
def test_groups_share_what_a_cpu_gains_from(hidden, inner, tokens):
    assert choose_pack_tokens(shape(hidden=hidden, inner=inner), CPU) == tokens


def test_free_memory_respects_a_limit_of_the_address_space():
    code = (
        "import psutil, resource, torch\n"
        "from offline_rlvr.trainer.memory import free_memory\n"
        "used = psutil.Process().memory_info().vms\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)\n"
        "print(free_memory(torch.device('cpu')))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(out.stdout) <= 64 << 20
    assert free_memory(CPU) > 64 << 20


@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_estimate_of_activations_is_that_of_a_real_forward_pass(kind, head_dim):
    """What autograd keeps for backward, counted tensor by tensor."""
    config = AutoConfig.for_model(
        kind,
        vocab_size=64,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=head_dim,
    )
    policy = Policy(AutoModelForCausalLM.from_config(config)).train()
    batch = ragged_batch()
    kept: dict[int, torch.Tensor] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.score(batch)
    tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens
    estimate = ModelShape.of(policy, config).bytes_per_token(checkpointing=False)
    assert measured == pytest.approx(estimate, rel=0.2)


def ragged_batch(g: int = 3, k: int = 8, p: int = 40, t: int = 60) -> PoolBatch:
    draw = torch.Generator().manual_seed(0)
    return PoolBatch(
        group_ids=torch.arange(g),
        prompt_token_ids=torch.randint(64, (g, p), generator=draw),
        prompt_lengths=torch.full((g,), p),
        response_token_ids=torch.randint(64, (g, k, t), generator=draw),
        response_lengths=torch.randint(1, t + 1, (g, k), generator=draw),
        behavior_logprobs=torch.zeros(g, k, t),
        rewards=torch.zeros(g, k),
    )
