"""Sampling with transformers' `generate` and its KV cache; runs anywhere torch runs.

`generate` only moves the cache along. The draw itself is ours, because two things must be certain:
the stored log-prob is that of the distribution which drew the token, and a response depends on its
seed, its prompt and the weights alone — not on its neighbors in the batch, the model's generation
config or the global random state.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import (
    Cache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError, ResourceError
from offline_rlvr.generation import Answer, Pending, responses_of
from offline_rlvr.generation.draw import SeededDraw
from offline_rlvr.generation.pretrained import load_model, load_tokenizer
from offline_rlvr.generation.sampling import Sampling, check_lengths, checked_response
from offline_rlvr.records import Response


class HFGenerator:
    """Samples responses from a transformers causal language model.

    Args:
        model: A decoder-only model, PEFT adapters allowed.
        tokenizer: Used to decode text and for its padding id.
        sampling: Settings of every response.
        batch_size: Responses per `generate` call; halved when the device is out of memory (no
            response depends on it).
        pad_token_id: Fills rows up; never read, since masks come from lengths. Default: the
            tokenizer's, or 0.

    Raises:
        ConfigError: `batch_size` is below 1.
        IncompatibleError: The model is not decoder-only.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        batch_size: int = 64,
        pad_token_id: int | None = None,
    ):
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
        # PEFT wraps `generate` to install its own generation config; the adapters act inside the
        # base model anyway.
        self.model: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        if self.model.config.is_encoder_decoder:
            raise IncompatibleError(
                f"{type(self.model).__name__} is an encoder-decoder model; "
                "only decoder-only ones are supported"
            )
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.batch_size = batch_size
        fallback: Any = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.pad_token_id: int = fallback if pad_token_id is None else pad_token_id

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> list[list[Response]]:
        """Sample `len(seeds[i])` responses for prompt i.

        Raises:
            DataError: A prompt is empty, or a sampled token has a non-finite or positive log-prob.
            IncompatibleError: A prompt and its response do not fit the model's positions.
            ResourceError: The device is out of memory with a single response.
        """
        return responses_of(self._answers(prompts, seeds))

    def submit(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> Pending:
        """The work of `generate`, put off until the answers are asked for."""
        return partial(self._answers, prompts, seeds)

    def close(self) -> None:
        """Nothing to do: the model goes with this object."""

    def _answers(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> list[Answer]:
        limit = getattr(self.model.config, "max_position_embeddings", None) or math.inf
        check_lengths(prompts, seeds, self.sampling, limit)
        rows = [(i, k) for i in range(len(prompts)) for k in range(len(seeds[i]))]
        # Neighbors of equal length need no padding and share a prefill of one width.
        rows.sort(key=lambda row: len(prompts[row[0]]))
        responses: dict[tuple[int, int], Response] = {}
        errors: dict[int, DataError] = {}
        with _neutral(self.model):
            while rows:
                sampled = self._sample_first(rows, prompts, seeds)
                batch, rows = rows[: len(sampled)], rows[len(sampled) :]
                for (i, k), (ids, logprobs) in zip(batch, sampled, strict=True):
                    try:
                        responses[i, k] = self._response(i, ids, logprobs, seeds[i][k])
                    except DataError as error:
                        errors.setdefault(i, error)
        return [
            errors.get(i) or [responses[i, k] for k in range(len(row))]
            for i, row in enumerate(seeds)
        ]

    def _sample_first(
        self,
        rows: list[tuple[int, int]],
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
    ) -> list[tuple[list[int], list[float]]]:
        """`_sample` of the first `batch_size` rows, which is halved until they fit."""
        while True:
            batch = rows[: self.batch_size]
            try:
                return self._sample([prompts[i] for i, _ in batch], [seeds[i][k] for i, k in batch])
            except torch.OutOfMemoryError as error:
                reason = str(error)
            # Out here the error no longer holds the keys and values that did not fit.
            if len(batch) == 1:
                raise ResourceError(
                    f"the device is out of memory with a single response ({reason})",
                    hint="use a device with more memory, then type the same command again",
                )
            self.batch_size = len(batch) // 2
            print(
                f"out of memory with {len(batch)} responses at once; going on with "
                f"{self.batch_size}",
                flush=True,
            )

    def _sample(
        self, prompts: list[Sequence[int]], seeds: list[int]
    ) -> list[tuple[list[int], list[float]]]:
        """Token ids and log-probs of one batch, cut after the first stop token."""
        places: dict[Sequence[int], int] = {}
        rows = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
        width = max(map(len, places))
        input_ids = torch.full((len(places), width), self.pad_token_id)
        mask = torch.zeros_like(input_ids)
        for prompt, row in places.items():
            input_ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        draw = SeededDraw(self.sampling, seeds)
        output = self._continue(
            input_ids[rows],
            mask[rows],
            self.sampling.max_new_tokens,
            logits_processor=LogitsProcessorList([draw]),
            past_key_values=self._prefill(input_ids[:, :-1], mask[:, :-1], rows),
        )
        ids = output.sequences[:, width:].tolist()
        logprobs = torch.stack(draw.logprobs, dim=1).tolist()
        return [self._cut(*pair) for pair in zip(ids, logprobs, strict=True)]

    def _prefill(
        self, input_ids: Int[Tensor, "U P"], mask: Int[Tensor, "U P"], rows: list[int]
    ) -> Cache | None:
        """Keys and values of U prompts, each computed once, and laid out for the rows that have it
        as their prompt.
        """
        if input_ids.shape[1] == 0:
            return None
        cache = self._continue(input_ids, mask, 1).past_key_values
        cache.batch_select_indices(torch.tensor(rows, device=self.model.device))
        return cache

    def _continue(
        self, input_ids: Int[Tensor, "B P"], mask: Int[Tensor, "B P"], tokens: int, **options: Any
    ) -> Any:
        """What `generate` returns for at most so many tokens."""
        config = GenerationConfig(
            max_new_tokens=tokens,
            do_sample=False,
            use_cache=True,
            return_dict_in_generate=True,
            pad_token_id=self.pad_token_id,
            eos_token_id=list(self.sampling.stop_token_ids) or None,
        )
        device = self.model.device
        return self.model.generate(
            input_ids.to(device),
            attention_mask=mask.to(device),
            generation_config=config,
            **options,
        )

    def _cut(self, ids: list[int], logprobs: list[float]) -> tuple[list[int], list[float]]:
        """Up to and with the first stop token: what follows is padding, even where pad is EOS."""
        stops = set(self.sampling.stop_token_ids)
        end = next((t + 1 for t, token in enumerate(ids) if token in stops), len(ids))
        return ids[:end], logprobs[:end]

    def _response(self, prompt: int, ids: list[int], logprobs: list[float], seed: int) -> Response:
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return checked_response(prompt, ids, logprobs, text, self.sampling, seed)


@contextmanager
def _neutral(model: Any) -> Iterator[None]:
    """The model in eval mode with an empty generation config; everything as found afterwards.

    `generate` fills every setting left unset from `model.generation_config` (a repetition penalty,
    suppressed tokens, ...), so explicit values are not enough: the source must be empty.
    """
    training = [module for module in model.modules() if module.training]
    found = model.generation_config
    model.generation_config = GenerationConfig()
    model.eval()
    try:
        yield
    finally:
        model.generation_config = found
        for module in training:
            module.training = True


def load(
    name_or_path: str,
    sampling: Sampling,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    batch_size: int = 64,
    adapter: str | Path | None = None,
) -> HFGenerator:
    """The generator of this back-end, by config name `hf`: loads the model and its tokenizer."""
    model = load_model(name_or_path, revision, dtype, device, adapter)
    return HFGenerator(model, load_tokenizer(name_or_path, revision), sampling, batch_size)
