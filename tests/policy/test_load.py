"""Loading, LoRA, gradient checkpointing, saving and restoring bit for bit."""

import json

import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.policy import load_policy, load_weights, save_policy

GRADIENT_TOLERANCE = 1e-5


@pytest.fixture
def tokenizer():
    vocabulary = {f"t{i}": i for i in range(53)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="t0", eos_token="t2")


@pytest.fixture
def base(tmp_path, make_model):
    """A model folder with attention dropout switched on."""
    folder = tmp_path / "base"
    make_model("qwen3", attention_dropout=0.3).save_pretrained(folder)
    return folder


def disturb(policy, seed=0):
    """Give every trainable weight a new value."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.2)


def weights(policy):
    return {name: value.clone() for name, value in policy.state_dict().items()}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(value, b[name]) for name, value in a.items())


@pytest.mark.parametrize("tied", [True, False])
def test_full_weights_round_trip(tied, tmp_path, make_model, make_batch, tokenizer):
    make_model("llama", tie_word_embeddings=tied).save_pretrained(tmp_path / "base")
    policy = load_policy(tmp_path / "base", temperature=0.8)
    disturb(policy)
    batch = make_batch()
    saved, scores = weights(policy), policy.score(batch).logprobs
    save_policy(policy, tmp_path / "saved", tokenizer)
    disturb(policy, seed=1)
    load_weights(policy, tmp_path / "saved")
    assert_equal(weights(policy), saved)
    assert torch.equal(policy.score(batch).logprobs, scores)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert_equal(plain.state_dict(), policy.causal_lm.state_dict())
    assert len(AutoTokenizer.from_pretrained(tmp_path / "saved")) == 53
    assert "shared_prefix" not in (tmp_path / "saved/config.json").read_text()


def test_lora_round_trip(tmp_path, base, make_batch, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a relative name is recorded as a path that works from anywhere
    policy = load_policy(
        "base", lora={"rank": 3, "alpha": 6, "target_modules": ["q_proj", "up_proj"]}
    )
    disturb(policy)
    batch = make_batch()
    saved, scores = weights(policy), policy.score(batch).logprobs
    save_policy(policy, tmp_path / "adapter", tokenizer)
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base.resolve())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (3, 6, 0.0)
    disturb(policy, seed=1)
    load_weights(policy, tmp_path / "adapter")
    assert_equal(weights(policy), saved)

    continued = load_policy(base, adapter=tmp_path / "adapter")
    assert_equal(weights(continued), saved)
    trainable = {n for n, p in continued.named_parameters() if p.requires_grad}
    assert trainable == {n for n, p in policy.named_parameters() if p.requires_grad}
    assert torch.equal(continued.score(batch).logprobs, scores)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    peft = PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))
    assert_equal(peft.state_dict(), policy.model.state_dict())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_adapter_gets_its_gradient(checkpointing, base, make_batch, plain_scores):
    batch = make_batch(g=2, k=2)
    policy = load_policy(base, lora={"rank": 2}, gradient_checkpointing=checkpointing)
    disturb(policy)
    calls = []
    policy.causal_lm.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    policy.score(batch).logprobs.sum().backward()
    assert len(calls) == (2 if checkpointing else 1)  # made again in the backward pass
    trainable = {n: p for n, p in policy.named_parameters() if p.requires_grad}
    assert len(trainable) == 3 * 7 * 2  # layers x linear maps x (A, B)
    assert all("lora_" in name for name in trainable)
    ours = {n: p.grad.clone() for n, p in trainable.items()}
    assert all(grad.abs().max() > 0 for grad in ours.values())
    policy.zero_grad()
    policy.causal_lm.gradient_checkpointing_disable()
    plain_scores(policy.causal_lm, batch)[0].sum().backward()
    for name, parameter in trainable.items():
        error = (ours[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < GRADIENT_TOLERANCE, name


def test_dropout_is_gone_and_the_policy_trains(base, make_batch):
    policy = load_policy(base)
    assert policy.training
    assert policy.causal_lm.config.attention_dropout == 0
    batch = make_batch()
    assert torch.equal(policy.score(batch).logprobs, policy.score(batch).logprobs)


def test_settings_that_cannot_be_used(base, tmp_path):
    with pytest.raises(ConfigError, match=r"unknown LoRA settings: ranks\n.*rank, alpha"):
        load_policy(base, lora={"ranks": 4})
    with pytest.raises(ConfigError, match=r"rank 0(.|\n)*rank at least 1"):
        load_policy(base, lora={"rank": 0})
    with pytest.raises(ConfigError, match=r"'zz'(.|\n)*down_proj, gate_proj"):
        load_policy(base, lora={"target_modules": ["zz"]})
    with pytest.raises(ConfigError, match="both lora"):
        load_policy(base, lora={}, adapter=tmp_path)
    with pytest.raises(ConfigError, match=r"holds no adapter_model\.safetensors"):
        load_policy(base, adapter=tmp_path)


def test_weights_that_do_not_fit(base, tmp_path, make_model, tokenizer):
    policy = load_policy(base, lora={"rank": 2})
    save_policy(policy, tmp_path / "two", tokenizer)
    with pytest.raises(IncompatibleError, match="size mismatch"):
        load_weights(load_policy(base, lora={"rank": 3}), tmp_path / "two")
    other = load_policy(base, lora={"rank": 2, "target_modules": ["q_proj"]})
    with pytest.raises(IncompatibleError, match="unexpected"):
        load_weights(other, tmp_path / "two")
    with pytest.raises(DataError, match=r"holds no model\*\.safetensors"):
        load_weights(load_policy(base), tmp_path / "two")
    make_model("qwen3", hidden_size=16).save_pretrained(tmp_path / "small")
    with pytest.raises(IncompatibleError, match="size mismatch"):
        load_weights(load_policy(base), tmp_path / "small")


def test_damaged_weights(base, tmp_path, tokenizer):
    policy = load_policy(base)
    save_policy(policy, tmp_path / "saved", tokenizer)
    file = tmp_path / "saved/model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match="cannot be read"):
        load_weights(policy, tmp_path / "saved")
