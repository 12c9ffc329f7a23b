"""Tiny models and tokenizers, made here: no hub, no files of the package."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from offline_rlvr.generation.pretrained import BUILTIN_FOLDER

CHARACTERS = "abcdefghijklmnopqrstuvwxyz 0123456789"
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<system>", "<assistant>")
TURNS = (
    "{% for turn in messages %}{{ '<' + turn['role'] + '>' + turn['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def make_tokenizer(
    template_bos: bool = True, adds_bos: bool = True, has_bos: bool = True, swap: str = ""
) -> PreTrainedTokenizerFast:
    """A character tokenizer; `swap` exchanges the ids of its two characters."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    if swap:
        one, two = swap
        vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 1)]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<system>", "<assistant>"],
        **({"bos_token": "<bos>"} if has_bos else {}),
    )
    fast.chat_template = ("{{ bos_token }}" if template_bos else "") + TURNS
    return fast


def make_llama(vocabulary: int = 44, seed: int = 0) -> LlamaForCausalLM:
    """Two layers, weights large enough that the distribution is not flat."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def make_gpt2(vocabulary: int = 44, dropout: float = 0.0) -> GPT2LMHeadModel:
    """Learned absolute positions: wrong positions under left padding change every log-prob."""
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=96,
        initializer_range=0.3,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config).eval()


class FixedLogits(LlamaForCausalLM):
    """A model that gives the same logits at every position, whatever it reads."""

    def __init__(self, logits: list[float]):
        super().__init__(
            LlamaConfig(
                vocab_size=len(logits),
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                max_position_embeddings=64,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        self.fixed = torch.tensor(logits)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any):
        output = super().forward(*args, **kwargs)
        output.logits = self.fixed.to(output.logits.device).expand_as(output.logits).clone()
        return output


@pytest.fixture(scope="session")
def forward_logprobs():
    """Log-probs [T] of a response from one plain forward of one unpadded row, in float64."""

    def compute(model, prompt, response, temperature=1.0, top_k=0) -> torch.Tensor:
        ids = torch.tensor([[*prompt, *response]])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
        logits = logits / temperature
        if top_k:
            smallest_kept = logits.topk(top_k).values[:, -1:]
            logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
        return logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]

    return compute


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The makers of this file: test files cannot import it."""
    return SimpleNamespace(
        tokenizer=make_tokenizer, llama=make_llama, gpt2=make_gpt2, fixed=FixedLogits
    )


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def biased_builtin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with a generation config that would change every response."""
    path = tmp_path_factory.mktemp("builtin") / "biased é"
    shutil.copytree(BUILTIN_FOLDER, path)
    neutral = json.loads((path / "generation_config.json").read_text())
    biased = {"repetition_penalty": 1.1, "top_k": 20, "top_p": 0.8, "temperature": 0.7}
    (path / "generation_config.json").write_text(json.dumps({**neutral, **biased}))
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a generation config that is anything but neutral."""
    path = tmp_path_factory.mktemp("model")
    model = make_llama()
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.1,
        top_p=0.33,
        top_k=20,
        repetition_penalty=1.2,
        eos_token_id=2,
    )
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path
