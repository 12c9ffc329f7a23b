"""The adapter of a checkpoint is sampled by vLLM as it is, with the policy's log-probs."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest
import torch

from offline_rlvr.batch import PoolBatch
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.policy.load import load_policy, save_policy

#: float32 kernels of two engines; 5e-6 was measured.
KERNEL_NOISE = 1e-4
#: How far the adapter moves log-probs, nats per token: 0.37 was measured.
ADAPTER_EFFECT = 0.05
PROMPT = list(range(5, 20))


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_samples_with_an_adapter_with_the_log_probs_of_the_policy(tmp_path):
    policy = load_policy("builtin", device="cpu", lora={"rank": 8})
    torch.manual_seed(0)
    with torch.no_grad():  # a fresh adapter changes nothing
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    save_policy(policy, tmp_path / "adapter", load_tokenizer("builtin"))
    batch = as_batch(sample(tmp_path / "adapter", tmp_path / "responses.json"))
    with torch.no_grad():
        scored = policy.score(batch).logprobs
        base = load_policy("builtin", device="cpu").score(batch).logprobs
    torch.testing.assert_close(scored, batch.behavior_logprobs, atol=KERNEL_NOISE, rtol=0)
    moved = (base - batch.behavior_logprobs)[batch.response_mask]
    assert moved.abs().mean() > ADAPTER_EFFECT


def sample(adapter, output):
    """Four responses of the built-in model under the adapter, with vLLM's log-probs."""
    driver = pathlib.Path(__file__).with_name("sample_with_adapter.py")
    done = subprocess.run(
        [sys.executable, driver, adapter, output, *map(str, PROMPT)],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(output.read_text())


def as_batch(responses):
    """Them as one group."""
    lengths = [len(response["token_ids"]) for response in responses]
    ids = torch.zeros(1, len(responses), max(lengths), dtype=torch.long)
    logprobs = torch.zeros(ids.shape)
    for i, response in enumerate(responses):
        ids[0, i, : lengths[i]] = torch.tensor(response["token_ids"])
        logprobs[0, i, : lengths[i]] = torch.tensor(response["logprobs"])
    return PoolBatch(
        group_ids=torch.zeros(1, dtype=torch.long),
        prompt_token_ids=torch.tensor([PROMPT]),
        prompt_lengths=torch.tensor([len(PROMPT)]),
        response_token_ids=ids,
        response_lengths=torch.tensor([lengths]),
        behavior_logprobs=logprobs,
        rewards=torch.zeros(1, len(responses)),
    )
