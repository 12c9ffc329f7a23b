"""What a CUDA device alone can show: compiled FlexAttention, bfloat16, memory, whole trainings."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from offline_rlvr import objectives
from offline_rlvr.batch import PoolBatch
from offline_rlvr.config import load_config
from offline_rlvr.policy import Policy
from offline_rlvr.pool import Pool
from offline_rlvr.pool.build import build_pool
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.accumulate import Accumulator
from offline_rlvr.trainer.memory import ModelShape, choose_token_budget, free_memory
from offline_rlvr.trainer.phases import Phases
from offline_rlvr.trainer.profile import UpdateProfile
from offline_rlvr.trainer.recheck import recheck
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's compiler
    pytest.mark.filterwarnings("ignore:.*TensorFloat32.*:UserWarning"),
]

#: float32 kernels sum in other orders.
VALUE_TOLERANCE = 5e-5
MIN_COSINE = 0.99999
#: bfloat16 has 8 bits: mean |difference| to float32 of a small random model, nats per token.
BF16_NOISE = 0.05
CUDA = torch.device("cuda")

SHAPE = {
    "vocab_size": 199,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.15,
}
KINDS = {
    "qwen3": {},
    "qwen2": {},
    "llama": {"num_key_value_heads": 3},
    "gemma3_text": {
        "sliding_window": 16,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


def model(kind: str = "qwen3", **changes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SHAPE | KINDS[kind] | changes))
    return AutoModelForCausalLM.from_config(config).to(CUDA)


def ragged(g: int = 4, k: int = 6, p: int = 40, t: int = 90, seed: int = 0) -> PoolBatch:
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.zeros(g, k)
    rewards[:, : k // 2] = 1
    return PoolBatch(
        group_ids=torch.arange(g),
        prompt_token_ids=torch.randint(199, (g, p), generator=draw),
        prompt_lengths=torch.randint(1, p + 1, (g,), generator=draw),
        response_token_ids=torch.randint(199, (g, k, t), generator=draw),
        response_lengths=torch.randint(1, t + 1, (g, k), generator=draw),
        behavior_logprobs=torch.full((g, k, t), -5.0),
        rewards=rewards,
    )


def gradient(scores: torch.Tensor, policy: Policy) -> torch.Tensor:
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(CUDA)
    policy.zero_grad()
    (scores * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("backend", ["flex", "split"])
@pytest.mark.parametrize("kind", KINDS)
def test_backends_equal_the_dense_oracle_in_value_and_gradient(kind, backend):
    policy, batch = Policy(model(kind), attention="dense"), ragged()
    dense = policy.score(batch).logprobs
    expected = gradient(dense, policy)
    policy.attention = backend
    scores = policy.score(batch).logprobs
    torch.testing.assert_close(scores, dense, atol=VALUE_TOLERANCE, rtol=0)
    found = gradient(scores, policy)
    assert torch.cosine_similarity(found, expected, 0) > MIN_COSINE
    assert found.norm() / expected.norm() == pytest.approx(1, abs=1e-4)


def test_the_default_back_end_is_flex_attention_and_any_length_works():
    policy = Policy(model())
    for seed, (p, t) in enumerate([(1, 1), (7, 130), (200, 3), (64, 64)]):
        batch = ragged(2, 3, p, t, seed)
        layout = policy._layout(batch)
        assert layout.backend == "flex"
        with torch.no_grad():
            flex = policy.score(batch).logprobs
            policy.attention = "dense"
            dense = policy.score(batch).logprobs
        policy.attention = None
        torch.testing.assert_close(flex, dense, atol=VALUE_TOLERANCE, rtol=0)


def test_mixed_precision_keeps_log_probs_weights_and_gradients_in_float32():
    policy, batch = Policy(model()), ragged()
    with torch.no_grad():
        exact = policy.score(batch).logprobs
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():  # what an anchor does first, in the same autocast
            first = policy.score(batch).logprobs
        torch.clear_autocast_cache()
        scores = policy.score(batch).logprobs
    assert scores.dtype == torch.float32
    assert torch.equal(first, scores)
    mask = batch.response_mask.to(CUDA)
    assert 0 < (scores - exact)[mask].abs().mean() < BF16_NOISE
    found = gradient(scores, policy)
    assert found.dtype == torch.float32
    assert all(p.grad is not None and p.grad.any() for p in policy.parameters())


def test_logits_of_bfloat16_are_not_rounded_to_bfloat16():
    policy, batch = Policy(model(hidden_size=256).bfloat16()), ragged()
    with torch.no_grad():
        scores = policy.score(batch).logprobs
    values = scores[batch.response_mask.to(CUDA)]
    assert (values.bfloat16().float() != values).float().mean() > 0.9


def test_an_update_beyond_the_device_memory_is_done_in_smaller_pieces():
    policy, batch = Policy(model(num_hidden_layers=6)), ragged(8, 8, 64, 256)
    tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
    accumulator = Accumulator(policy, objectives.load("grpo"), tokens, Phases(CUDA))
    done = accumulator.add_gradients(1, batch, batch.totals, {}, entropy=False)
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()])
    estimate = ModelShape.of(policy, policy.causal_lm.config).bytes_per_token(False) * tokens
    policy.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(CUDA).total_memory
    room = torch.cuda.memory_reserved() + estimate // 3
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            accumulator.add_gradients(1, batch, batch.totals, {}, entropy=False)
        while True:
            policy.zero_grad(set_to_none=True)
            accumulator.shrink("the device is full")
            try:
                again = accumulator.add_gradients(1, batch, batch.totals, {}, entropy=False)
                break
            except torch.OutOfMemoryError:
                continue
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert float(again.loss) == pytest.approx(float(done.loss), abs=1e-5)
    found = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert torch.cosine_similarity(found, expected, 0) > MIN_COSINE


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_the_estimate_of_activations_is_never_far_too_low(kind, autocast):
    policy = Policy(model(kind, hidden_size=768, intermediate_size=2048, num_hidden_layers=8))
    batch = ragged(8, 8, 64, 200)
    tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        policy.score(batch).logprobs.sum().backward()  # compiles
        policy.zero_grad(set_to_none=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        scores = policy.score(batch).logprobs
        kept = torch.cuda.memory_allocated() - before
    estimate = ModelShape.of(policy, policy.causal_lm.config).bytes_per_token(False) * tokens
    print(
        f"{kind} autocast={autocast}: measured {kept / tokens:,.0f} bytes per token, estimated "
        f"{estimate / tokens:,.0f}"
    )
    assert scores.requires_grad
    assert kept < 1.25 * estimate


def test_the_budget_is_chosen_from_the_device():
    shape = ModelShape.of(policy := Policy(model()), policy.causal_lm.config)
    assert free_memory(CUDA) > 1 << 30
    assert choose_token_budget(shape, CUDA, checkpointing=False) >= 1024


JOB = [
    ("model.device", "cuda"),
    ("train.micro_batch_tokens", "null"),
    ("train.max_noise_floor", "0.05"),
]
PRECISIONS = {
    "float32": [],
    "bf16-mixed": [("train.precision", "bf16-mixed")],
    "bf16-mixed-lora": [
        ("train.precision", "bf16-mixed"),
        ("model.lora", "{rank: 8, alpha: 16}"),
        ("train.learning_rate", "1e-3"),
    ],
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_from_pool_to_evaluation(precision, small_job, tmp_path):
    config = load_config(small_job, [*JOB, *PRECISIONS[precision]])
    pool, run = tmp_path / "pool", tmp_path / "run"
    build_pool(config, pool)
    print("pool noise:", recheck(Pool.open(pool), 8, 0.05, "cuda"))
    train(config, pool, run, callbacks=[UpdateProfile(3, run)])
    assert "update 6" in verify_run(run)
    rows = list(read_rows(run / "metrics.jsonl"))
    print(precision, "noise floor", rows[0]["drift/noise_floor"])
    assert [row["reference/k3"] == 0 for row in rows] == [True, False, False, True, False, False]
    assert rows[5]["drift/abs_log_ratio"] > 2 * rows[0]["drift/abs_log_ratio"]
    assert all(row["train/grad_norm"] > 0 for row in rows)
    assert json.loads((run / "profile.json").read_text())["device"] == "cuda:0"


def test_a_run_goes_on_where_it_was_stopped(small_job, tmp_path):
    config = load_config(small_job, [*JOB, ("evaluation.problems", "null")])
    pool = tmp_path / "pool"
    build_pool(config, pool)
    train(config, pool, tmp_path / "whole")
    short = load_config(
        small_job, [*JOB, ("evaluation.problems", "null"), ("train.max_updates", "3")]
    )
    train(short, pool, tmp_path / "halves")
    train(config, pool, tmp_path / "halves")
    losses = [
        [row["loss"] for row in read_rows(tmp_path / run / "ledger.jsonl")]
        for run in ("whole", "halves")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert checkpoints.newest(tmp_path / "halves" / "checkpoints", print) is not None
