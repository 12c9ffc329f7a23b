"""What cannot be packed exactly is refused by name."""

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GraniteConfig,
    MambaConfig,
    Qwen3NextConfig,
)

from offline_rlvr.errors import IncompatibleError
from offline_rlvr.policy import Policy, packable

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": 53}
SMALL = IDS | {"hidden_size": 32, "num_hidden_layers": 2}
HEADS = SMALL | {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
NEXT = HEADS | {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
NEXT |= {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
NEXT |= {"shared_expert_intermediate_size": 8}
REFUSED = {
    "mamba": (MambaConfig(**SMALL, state_size=4), "MambaForCausalLM .* from token to token"),
    "linear": (Qwen3NextConfig(**NEXT), "Qwen3NextForCausalLM .* linear_attention"),
    "softcap": (Gemma2Config(**HEADS), "Gemma2ForCausalLM .* soft-capped"),
    "alibi": (BloomConfig(**IDS, hidden_size=32, n_layer=1, n_head=2), "BloomForCausalLM .* Atten"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_config(name):
    config, message = REFUSED[name]
    with pytest.raises(IncompatibleError, match=message):
        packable(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rotary"),
        ("gemma3", {"use_bidirectional_attention": True}, "not causal"),
    ],
)
def test_refused_settings(kind, changes, message, make_model):
    with pytest.raises(IncompatibleError, match=message):
        packable(make_model(kind, **changes))


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "gemma3", "mistral", "gpt2"])
def test_plain_attention_is_accepted(kind, make_model):
    packable(make_model(kind))


def test_unknown_head_arithmetic_is_found_by_the_probe():
    """Granite divides its logits by a number of its own; the config check does not know."""
    config = GraniteConfig(**HEADS, logits_scaling=8.0, initializer_range=0.3)
    model = AutoModelForCausalLM.from_config(config)
    packable(model)
    with pytest.raises(IncompatibleError, match=r"GraniteForCausalLM .* differ by"):
        Policy(model)


def test_a_mask_that_does_not_reach_the_layers_is_found_by_the_probe(make_model):
    model = make_model("llama")
    attention = model.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *args, layout=None, **kwargs: forward(*args, **kwargs)
    with pytest.raises(IncompatibleError, match="LlamaForCausalLM"):
        Policy(model)


def test_a_window_that_does_not_reach_the_layers_is_refused(make_model):
    model = make_model("gemma3")
    model.model.layers[0].self_attn.sliding_window = None
    with pytest.raises(IncompatibleError, match=r"windows \{0: None, 1: None, 2: 4\}"):
        Policy(model)


def test_other_modules_and_adapters(make_model):
    with pytest.raises(IncompatibleError, match="no transformers model"):
        packable(torch.nn.Linear(2, 2))  # pyright: ignore
    head = LoraConfig(r=2, target_modules=["lm_head"])
    with pytest.raises(IncompatibleError, match="keep LoRA off the head"):
        packable(get_peft_model(make_model(), head))
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(IncompatibleError, match="allowed is one LoRA adapter"):
        packable(get_peft_model(make_model(), prompt))
