"""Tiny random models of several architectures, ragged batches, and the one-response oracle."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from offline_rlvr.batch import PoolBatch

VOCABULARY = 53
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Large enough that attention matters: a wrong mask moves log-probs by whole nats.
    "initializer_range": 0.3,
}
#: Windows are shorter than the sequences of the tests.
GEMMA3 = {"sliding_window": 4, "query_pre_attn_scalar": 8, "final_logit_softcapping": 6.0}
GEMMA3 |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}


def _config(kind: str, **changes):
    shape = SHAPE | changes
    if kind == "gemma3":
        return Gemma3TextConfig(**(GEMMA3 | shape))
    if kind == "mistral":
        return MistralConfig(**({"sliding_window": 5} | shape))
    if kind == "gpt2":
        ids = {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}
        return GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, **ids)
    if kind == "smollm":  # nine heads on three key heads: no power of two, as SmolLM-135M has it
        heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 36}
        return LlamaConfig(**(shape | heads))
    return {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig}[kind](**shape)


@pytest.fixture
def make_model():
    """Build a model with seeded random weights; the same arguments give the same weights."""

    def make(kind: str = "qwen3", attention: str = "sdpa", seed: int = 0, **changes):
        torch.manual_seed(seed)
        config = _config(kind, **changes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:  # norms and biases start as constants: make them count
                    parameter += 0.1 * torch.randn_like(parameter)
        return model.eval()

    return make


@pytest.fixture
def make_batch():
    """Build a ragged batch; explicit lengths win over random ones."""

    def make(g=3, k=4, p=6, t=7, seed=0, prompt_lengths=None, response_lengths=None):
        gen = torch.Generator().manual_seed(seed)

        def draw(low, *size):
            return torch.randint(low, *size, generator=gen)

        if prompt_lengths is None:
            prompt_lengths = draw(1, p + 1, (g,))
            response_lengths = draw(1, t + 1, (g, k))
        prompt_lengths, lengths = torch.as_tensor(prompt_lengths), torch.as_tensor(response_lengths)
        (g, k), p, t = lengths.shape, int(prompt_lengths.max()), int(lengths.max())
        return PoolBatch(
            group_ids=torch.arange(g),
            prompt_token_ids=draw(0, VOCABULARY, (g, p)),
            prompt_lengths=prompt_lengths,
            response_token_ids=draw(0, VOCABULARY, (g, k, t)),
            response_lengths=lengths,
            behavior_logprobs=torch.zeros(g, k, t),
            rewards=torch.zeros(g, k),
        )

    return make


@pytest.fixture
def plain_scores():
    """[G, K, T] log-probs and entropies, each response alone through the model's own forward."""

    def score(model, batch: PoolBatch, temperature: float = 1.0):
        logprobs = torch.zeros(batch.response_token_ids.shape)
        entropies = torch.zeros(batch.response_token_ids.shape)
        for g, length in enumerate(batch.prompt_lengths.tolist()):
            for k, n in enumerate(batch.response_lengths[g].tolist()):
                response = batch.response_token_ids[g, k, :n]
                ids = torch.cat([batch.prompt_token_ids[g, :length], response])
                logits = model(input_ids=ids[None], use_cache=False).logits[0] / temperature
                every = logits.log_softmax(-1)
                for i in range(n):  # response token i stands at length + i
                    row = every[length + i - 1]
                    logprobs[g, k, i] = row[response[i]]
                    entropies[g, k, i] = -(row.exp() * row).sum().detach()
        return logprobs, entropies

    return score
