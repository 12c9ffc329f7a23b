"""One BOS where the model has one; the generation prompt last; the ids that stop a response."""

import json

import pytest
from transformers import GenerationConfig

from offline_rlvr.errors import IncompatibleError
from offline_rlvr.generation.prompt import (
    MATH_SUFFIX,
    MATH_SYSTEM,
    PromptFormat,
    stop_token_ids,
)

BOS, USER, SYSTEM, ASSISTANT = 1, 4, 5, 6


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("template_bos", "adds_bos"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_exactly_one_bos_where_the_model_has_one(tiny, template_bos, adds_bos, chat):
    tokenizer = tiny.tokenizer(template_bos=template_bos, adds_bos=adds_bos)
    ids = PromptFormat(chat_template=chat).render(tokenizer, "ab")
    has_one = adds_bos or (template_bos and chat)
    turn = [USER, 7, 8, ASSISTANT] if chat else [7, 8]
    assert ids == ([BOS] if has_one else []) + turn


def test_a_model_without_bos_gets_none(tiny):
    tokenizer = tiny.tokenizer(template_bos=False, adds_bos=False, has_bos=False)
    assert PromptFormat().render(tokenizer, "a") == [USER, 7, ASSISTANT]


def test_a_template_that_doubles_its_bos(tiny):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    assert PromptFormat().render(tokenizer, "a") == [BOS, USER, 7, ASSISTANT]


def test_bos_as_a_turn_marker_stays(tiny):
    tokenizer = tiny.tokenizer(template_bos=False, adds_bos=False)
    tokenizer.chat_template = "{% for m in messages %}<bos>{{ m['content'] }}{% endfor %}<bos>"
    assert PromptFormat(system="a").render(tokenizer, "b") == [BOS, 7, BOS, 8, BOS]


def test_system_and_suffix(tiny, tokenizer):
    assert PromptFormat(system="b", user_suffix=" c").render(tokenizer, "a") == [
        *[BOS, SYSTEM, 8],
        *[USER, 7, 33, 9, ASSISTANT],
    ]
    plain = PromptFormat(system="b", user_suffix="c", chat_template=False)
    assert tokenizer.decode(plain.render(tokenizer, "a")).replace(" ", "") == "<bos>b<unk><unk>ac"


def test_the_papers_prompts():
    assert MATH_SYSTEM == r"Please reason step by step, and put your final answer within \boxed{}."
    assert MATH_SUFFIX.strip() == (
        r"Let's think step by step and output the final answer within \boxed{}."
    )
    assert MATH_SUFFIX[0] == " "


def test_no_template(tiny):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(IncompatibleError, match="no chat template") as caught:
        PromptFormat().render(tokenizer, "a")
    assert "chat_template: false" in str(caught.value)


def test_stop_ids_join_tokenizer_and_generation_config(tiny, tokenizer, tmp_path):
    model = tiny.llama()
    model.generation_config = GenerationConfig(eos_token_id=[9, 2, 5])
    assert stop_token_ids(model, tokenizer) == (2, 5, 9)
    model.generation_config = GenerationConfig(eos_token_id=7)
    assert stop_token_ids(model, tokenizer) == (2, 7)
    model.save_pretrained(tmp_path)
    assert stop_token_ids(tmp_path, tokenizer) == (2, 7)
    assert stop_token_ids(str(tmp_path), tokenizer) == (2, 7)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": [11]}))
    assert stop_token_ids(tmp_path, tokenizer) == (2, 11)


def test_no_stop_id_at_all(tiny, tokenizer):
    model = tiny.fixed([0.0])
    model.generation_config = GenerationConfig()
    tokenizer.eos_token = None
    with pytest.raises(IncompatibleError, match="end-of-sequence"):
        stop_token_ids(model, tokenizer)
