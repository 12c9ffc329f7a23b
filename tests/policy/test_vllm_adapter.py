"""The adapter of a checkpoint is one that vLLM serves as it is, with the policy's log-probs."""

import importlib.util

import pytest
import torch

from offline_rlvr.batch import PoolBatch
from offline_rlvr.generation.pretrained import BUILTIN_FOLDER, load_tokenizer
from offline_rlvr.policy.load import load_policy, save_policy

#: float32 kernels of two engines; 5e-6 was measured.
KERNEL_NOISE = 1e-4
#: How far the adapter moves log-probs, nats per token: 0.37 was measured.
ADAPTER_EFFECT = 0.05


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_vllm_serves_an_adapter_with_the_log_probs_of_the_policy(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    policy = load_policy("builtin", device="cpu", lora={"rank": 8})
    torch.manual_seed(0)
    with torch.no_grad():  # a fresh adapter changes nothing
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    save_policy(policy, tmp_path, load_tokenizer("builtin"))

    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        model=str(BUILTIN_FOLDER),
        enable_lora=True,
        max_lora_rank=8,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        generation_config="vllm",
    )
    try:
        prompt = list(range(5, 20))
        (output,) = llm.generate(
            [{"prompt_token_ids": prompt}],
            SamplingParams(n=4, max_tokens=24, logprobs=0),
            lora_request=LoRARequest("adapter", 1, str(tmp_path)),
            use_tqdm=False,
        )
    finally:
        llm.llm_engine.engine_core.shutdown()
    lengths = [len(answer.token_ids) for answer in output.outputs]
    ids = torch.zeros(1, 4, max(lengths), dtype=torch.long)
    sampled = torch.zeros(ids.shape)
    for i, answer in enumerate(output.outputs):
        ids[0, i, : lengths[i]] = torch.tensor(list(answer.token_ids))
        chosen = zip(answer.logprobs, answer.token_ids, strict=True)
        sampled[0, i, : lengths[i]] = torch.tensor([at[token].logprob for at, token in chosen])
    batch = PoolBatch(
        group_ids=torch.zeros(1, dtype=torch.long),
        prompt_token_ids=torch.tensor([prompt]),
        prompt_lengths=torch.tensor([len(prompt)]),
        response_token_ids=ids,
        response_lengths=torch.tensor([lengths]),
        behavior_logprobs=sampled,
        rewards=torch.zeros(1, 4),
    )
    with torch.no_grad():
        scored = policy.score(batch).logprobs
        base = load_policy("builtin", device="cpu").score(batch).logprobs
    torch.testing.assert_close(scored, sampled, atol=KERNEL_NOISE, rtol=0)
    assert (base - sampled)[batch.response_mask].abs().mean() > ADAPTER_EFFECT
