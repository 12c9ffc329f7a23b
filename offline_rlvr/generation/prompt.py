"""From a question to the exact ids the model is given: one rule for sampling and evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from offline_rlvr.errors import DataError, IncompatibleError

#: System prompt and instruction after each problem, as the GGPO paper gives them (data and
#: evaluation protocol).
MATH_SYSTEM = r"Please reason step by step, and put your final answer within \boxed{}."
MATH_SUFFIX = r" Let's think step by step and output the final answer within \boxed{}."


@dataclass(frozen=True)
class PromptFormat:
    """How a question becomes a prompt.

    Attributes:
        system: System message, or None.
        user_suffix: Appended to the question verbatim (begin it with a space or a newline).
        chat_template: Use the tokenizer's chat template; False gives plain text to complete.
    """

    system: str | None = None
    user_suffix: str = ""
    chat_template: bool = True

    def render(self, tokenizer: PreTrainedTokenizerBase, question: str) -> list[int]:
        """Prompt ids, generation prompt included, with exactly one BOS where the model has one.

        A model has a BOS when its chat template writes one or its tokenizer puts one before plain
        text; a `bos_token` that neither uses (GPT-2) was not there in training and is left out.

        Raises:
            IncompatibleError: A chat template is asked for and the tokenizer has none.
            DataError: The prompt is empty.
        """
        content = question + self.user_suffix
        ids = (
            self._chat(tokenizer, content)
            if self.chat_template
            else self._plain(tokenizer, content)
        )
        bos = tokenizer.bos_token_id
        if adds_bos(tokenizer):
            ids = [bos, *ids]
        while ids[:2] == [bos, bos]:
            ids = ids[1:]
        if not ids:
            raise DataError(f"the prompt of question {question!r} has no tokens")
        return ids

    def _chat(self, tokenizer: PreTrainedTokenizerBase, content: str) -> list[int]:
        if not tokenizer.chat_template:
            raise IncompatibleError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template",
                hint="set prompt.chat_template: false, or use a model that has one",
            )
        messages = [{"role": "user", "content": content}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        ids: Any = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(ids)

    def _plain(self, tokenizer: PreTrainedTokenizerBase, content: str) -> list[int]:
        text = content if self.system is None else f"{self.system}\n\n{content}"
        return tokenizer.encode(text, add_special_tokens=False)


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer puts its BOS before plain text."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer.encode("a", add_special_tokens=True)[:1] == [bos]


def stop_token_ids(model_or_folder: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that end a response: EOS of the tokenizer and of the generation config, ascending.

    Args:
        model_or_folder: A loaded model, or the folder of one.
        tokenizer: Its tokenizer.

    Raises:
        IncompatibleError: None of them names an end-of-sequence id.
    """
    if isinstance(model_or_folder, str | Path):
        found = _eos_of_folder(Path(model_or_folder))
    else:
        found = model_or_folder.generation_config.eos_token_id
    named = [tokenizer.eos_token_id, *(found if isinstance(found, list | tuple) else [found])]
    ids = {token for token in named if isinstance(token, int)}
    if not ids:
        raise IncompatibleError(
            "neither the tokenizer nor the model's generation config names an end-of-sequence id",
            hint="set eos_token_id in the model's generation_config.json",
        )
    return tuple(sorted(ids))


def _eos_of_folder(folder: Path) -> int | list[int] | None:
    """As transformers reads it: config.json counts only where generation_config.json is missing."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            return json.loads((folder / name).read_text("utf-8")).get("eos_token_id")
    return None
