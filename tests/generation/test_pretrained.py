"""Loading: no dropout, no sockets, clear refusals; fingerprints that tell policies apart."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from offline_rlvr.errors import ConfigError, IncompatibleError, ResourceError
from offline_rlvr.generation import Sampling
from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.pretrained import (
    fingerprint,
    folder_of,
    load_model,
    load_tokenizer,
    tokenizer_hash,
)

IDS = torch.tensor([[1, 7, 8, 9, 10]])

#: Sampling from a folder in a process that cannot open a socket.
NO_SOCKETS = """
import socket, sys
def refuse(*args, **kwargs):
    raise SystemExit("a socket was opened")
class Refused(socket.socket):
    __init__ = refuse
socket.socket = Refused
socket.create_connection = socket.getaddrinfo = refuse
from offline_rlvr.generation import Sampling
from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.pretrained import fingerprint, load_model, load_tokenizer
model, tokenizer = load_model(sys.argv[1]), load_tokenizer(sys.argv[1])
fingerprint(sys.argv[1])
print(len(HFGenerator(model, tokenizer, Sampling(3)).generate([[1, 7]], [[0, 1]])[0]))
"""


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the model folder that a test may damage."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def adapter(tiny, tmp_path: Path) -> Path:
    """A LoRA adapter that does something, with dropout."""
    model = get_peft_model(
        tiny.llama(), LoraConfig(r=2, lora_dropout=0.5, target_modules=["q_proj"])
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def test_loads_the_weights_in_eval_mode(tiny, folder):
    model = load_model(folder, device="cpu")
    assert not model.training
    assert model.dtype == torch.float32
    torch.testing.assert_close(model(IDS).logits, tiny.llama()(IDS).logits)
    assert load_model(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_a_local_folder_opens_no_socket(folder, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", NO_SOCKETS, str(folder)],
        capture_output=True,
        text=True,
        env={"HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},  # offline mode is not set
    )
    assert done.stdout == "2\n", done.stderr


def test_dropout_is_off_even_in_train_mode(tiny, tmp_path):
    tiny.gpt2(dropout=0.5).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.config.attn_pdrop == model.config.resid_pdrop == model.config.embd_pdrop == 0
    model.train()
    assert torch.equal(model(IDS).logits, model(IDS).logits)


def test_functional_attention_dropout_is_off(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    model = load_model(copy)
    assert model.config.attention_dropout == 0
    model.train()
    assert torch.equal(model(IDS).logits, model(IDS).logits)


def test_adapter(folder, adapter, tokenizer):
    plain, adapted = load_model(folder), load_model(folder, adapter=adapter)
    assert not torch.allclose(plain(IDS).logits, adapted(IDS).logits, atol=1e-2)
    adapted.train()
    assert torch.equal(adapted(IDS).logits, adapted(IDS).logits)  # lora_dropout is off
    response = HFGenerator(adapted, tokenizer, Sampling(6)).generate([[1, 7]], [[0]])[0][0]
    ids = torch.tensor([[1, 7, *response.token_ids]])
    expected = adapted(ids).logits[0, 1:-1].log_softmax(-1)
    got = torch.tensor(response.behavior_logprobs)
    want = expected.gather(-1, torch.tensor(response.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_adapters_that_cannot_be_loaded(folder, adapter, tiny, tmp_path):
    with pytest.raises(IncompatibleError, match=r"no adapter_config\.json and no adapter_model"):
        load_model(folder, adapter=folder)
    tiny.gpt2().save_pretrained(tmp_path / "other")
    with pytest.raises(IncompatibleError, match="does not fit this model"):
        load_model(tmp_path / "other", adapter=adapter)


def test_folders_that_are_none(tmp_path, copy):
    for name in (str(tmp_path / "none"), "./none", "~/none/none", tmp_path / "none"):
        with pytest.raises(ConfigError, match="there is no model folder"):
            folder_of(name)
    with pytest.raises(IncompatibleError, match=r"it has no config\.json"):
        load_model(tmp_path)
    (copy / "tokenizer.json").write_text("{")
    (copy / "tokenizer_config.json").unlink()
    with pytest.raises(IncompatibleError, match="no tokenizer that transformers can load"):
        load_tokenizer(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(IncompatibleError, match="no causal language model"):
        load_model(copy)
    with pytest.raises(IncompatibleError, match="holds no"):
        fingerprint(copy)


def test_damaged_weights_are_refused(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(IncompatibleError, match="can load"):
        load_model(copy)


def test_missing_tensors_are_refused(copy):
    tensors = load_file(copy / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IncompatibleError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(copy)


def test_pickled_weights_are_refused(copy, tiny):
    (copy / "model.safetensors").unlink()
    torch.save(tiny.llama().state_dict(), copy / "pytorch_model.bin")
    with pytest.raises(IncompatibleError, match="safetensors"):
        load_model(copy)


def test_a_hub_id_that_cannot_be_had(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ResourceError, match="nobody/none") as caught:
        load_model("nobody/none", revision="abc")
    assert "'abc'" in str(caught.value)


def test_a_hub_id_is_read_from_the_cache(monkeypatch, tmp_path, folder):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--somebody--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert folder_of("somebody/tiny") == repository / "snapshots" / commit
    assert fingerprint("somebody/tiny") == fingerprint(folder)


def test_settings_out_of_range(folder):
    with pytest.raises(ConfigError, match="dtype is 'fp8'; allowed: float32"):
        load_model(folder, dtype="fp8")
    with pytest.raises(ConfigError, match="device is 'gpu'"):
        load_model(folder, device="gpu")
    with pytest.raises(ConfigError, match="CUDA devices"):
        load_model(folder, device="cuda:99")


def test_fingerprint_is_stable_and_tells_policies_apart(folder, copy, adapter, tiny):
    one = fingerprint(folder)
    assert json.loads(json.dumps(one)) == one == fingerprint(copy)
    assert list(one["weights"]) == ["model.safetensors"]
    assert one["adapter"] is None

    def changed(**arguments) -> set[str]:
        other = fingerprint(copy, **arguments)
        return {key for key in one if one[key] != other[key]}

    assert changed(adapter=adapter) == {"adapter"}
    (copy / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert changed() == {"chat_template"}
    tiny.tokenizer(swap="ab").save_pretrained(copy)
    assert changed() == {"tokenizer"}
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][3] += 1e-6
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert changed() == {"tokenizer", "weights"}
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert changed() == {"tokenizer", "weights", "config"}


def test_tokenizer_hash_ignores_where_it_lies(folder, copy, tiny):
    assert tokenizer_hash(load_tokenizer(folder)) == tokenizer_hash(load_tokenizer(copy))
    padded = load_tokenizer(folder)
    padded(["a", "abc"], padding=True, truncation=True, max_length=3)
    assert tokenizer_hash(padded) == tokenizer_hash(load_tokenizer(folder))
    other = load_tokenizer(folder)
    other.eos_token = "<unk>"
    assert tokenizer_hash(other) != tokenizer_hash(padded)
