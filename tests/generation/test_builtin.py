"""The model that comes with the package, and the script that makes it."""

import importlib.util
from pathlib import Path

import pytest
import torch

from offline_rlvr.generation import Sampling, seed_for
from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.pretrained import (
    BUILTIN,
    BUILTIN_FOLDER,
    load_model,
    load_tokenizer,
    tokenizer_hash,
)
from offline_rlvr.generation.prompt import PromptFormat, stop_token_ids
from offline_rlvr.problems import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_builtin_model.py"


@pytest.fixture(scope="module")
def builtin():
    return load_model(BUILTIN, device="cpu"), load_tokenizer(BUILTIN)


def test_it_is_small(builtin):
    assert sum(file.stat().st_size for file in BUILTIN_FOLDER.iterdir()) < 5_000_000
    model, _ = builtin
    assert model.config.model_type == "qwen3"
    assert 700_000 < model.num_parameters() < 900_000


def test_the_tokenizer_covers_printable_ascii(builtin):
    model, tokenizer = builtin
    text = "\n" + "".join(map(chr, range(32, 127)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(set(ids)) == 96
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("é", add_special_tokens=False) == [tokenizer.unk_token_id]
    special = {getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "pad", "unk")}
    assert len(special) == 4
    assert model.config.vocab_size == len(tokenizer)


def test_its_prompt_and_its_stop(builtin):
    model, tokenizer = builtin
    for system in (None, "Be brief."):
        ids = PromptFormat(system=system).render(tokenizer, "1 + 2")
        assert ids.count(tokenizer.bos_token_id) == 1
        middle = "" if system is None else f"<|system|>{system}"
        assert tokenizer.decode(ids) == f"<|bos|>{middle}<|user|>1 + 2<|assistant|>"
    assert stop_token_ids(model, tokenizer) == (tokenizer.eos_token_id,)
    assert stop_token_ids(BUILTIN_FOLDER, tokenizer) == (tokenizer.eos_token_id,)


def test_it_is_a_student_that_can_learn(builtin):
    model, tokenizer = builtin
    problems = load("arithmetic", count=120, seed=7, split="heldout")
    prompts = [PromptFormat().render(tokenizer, problem.question) for problem in problems]
    seeds = [[seed_for(1, i, k) for k in range(8)] for i in range(len(problems))]
    sampling = Sampling(24, stop_token_ids=stop_token_ids(model, tokenizer))
    groups = HFGenerator(model, tokenizer, sampling, batch_size=480).generate(prompts, seeds)
    right = [
        sum(response.text == f"\\boxed{{{problem.answer}}}" for response in group)
        for problem, group in zip(problems, groups, strict=True)
    ]
    assert 0.40 <= sum(right) / (8 * len(problems)) <= 0.62
    assert sum(0 < n < 8 for n in right) / len(right) >= 0.5
    lengths = [len(response.token_ids) for group in groups for response in group]
    assert 8 < sum(lengths) / len(lengths) < 14


def test_the_script_is_seeded_and_makes_what_is_shipped(builtin):
    specification = importlib.util.spec_from_file_location("make_builtin_model", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    shipped, tokenizer = builtin
    assert tokenizer_hash(script.make_tokenizer()) == tokenizer_hash(tokenizer)
    assert script.make_tokenizer().chat_template == tokenizer.chat_template
    models = [script.make_model(len(tokenizer), seed=0) for _ in range(2)]
    for model in models:
        script.train(model, tokenizer, steps=2, seed=0)
    one, two = (model.state_dict() for model in models)
    assert all(torch.equal(one[name], two[name]) for name in one)
    shapes = {name: tensor.shape for name, tensor in shipped.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in one.items()}
