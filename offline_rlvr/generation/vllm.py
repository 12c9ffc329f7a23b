"""Sampling with vLLM's engine in this machine's GPUs, or on its CPU; the fast back-end.

    generation:
      name: vllm
      tensor_parallel_size: 4       # GPUs that share one copy of the model
      max_model_len: 8192           # prompt and response; default: what model and memory allow
      gpu_memory_utilization: 0.9   # share of a GPU's memory; default: vLLM's own
      enforce_eager: false          # no CUDA graphs; default: true on a CPU, else false
      seed_per_response: false      # see below
      engine: {max_num_seqs: 512}   # further engine arguments, passed on as they are

Prompts are sent as token ids and responses stored as token ids; every sampling setting is sent with
every request, and neither the model's generation config nor vLLM's tokenizer has a say. The stored
log-probs are those of the distribution each token was drawn from (`processed_logprobs`), looked up
by the id drawn.

One random stream draws all responses, seeded by the first seed of the first submission: a build
that is continued does not use a stream twice. Responses then have no seed of their own (None), and
sampling them again gives others. With `seed_per_response` each response is a request of its own
with the seed it is stored with; vLLM's CPU engine cannot do that.

On a CPU, `VLLM_CPU_KVCACHE_SPACE` (GiB) or `engine.kv_cache_memory_bytes` sets the space for keys
and values; 2 GiB by default.
"""

# vLLM is optional; where it is missing, pyright takes the module of that name beside this one.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from transformers import PreTrainedTokenizerBase

from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.generation import Answer, Pending
from offline_rlvr.generation.engine import Engine, check_engine_arguments, platform_of
from offline_rlvr.generation.pretrained import folder_of, load_tokenizer
from offline_rlvr.generation.sampling import (
    Sampling,
    check_lengths,
    check_vllm_temperature,
    checked_response,
)
from offline_rlvr.records import Response


class VLLMGenerator:
    """Samples responses with an engine that is started by the first submission.

    Args:
        folder: Of the model.
        tokenizer: Decodes responses to text.
        sampling: Settings of every response.
        arguments: Of vLLM's engine.
        platform: `cpu` or `cuda`: what vLLM is built for.
        seed_per_response: See above.
        adapter: Folder of a PEFT adapter, used as it is.

    Raises:
        ConfigError: vLLM cannot sample at this temperature, or not with seeds.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        arguments: Mapping[str, Any],
        platform: str,
        seed_per_response: bool = False,
        adapter: Path | None = None,
    ):
        check_vllm_temperature(sampling)
        if seed_per_response and platform == "cpu":
            raise ConfigError(
                "seed_per_response: vLLM's CPU engine cannot sample a request with its own seed",
                hint="leave it out, or set generation.name: hf, which always seeds each response",
            )
        self.sampling = sampling
        self._tokenizer = tokenizer
        self._arguments = {"model": str(folder), **arguments}
        self._platform = platform
        self._seed_per_response = seed_per_response
        self._adapter = adapter
        self._engine: Engine | None = None
        self._closed = False
        self._finished: dict[str, Any] = {}

    def submit(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> Pending:
        """Queue the prompts; the engine works on them from now on, waited for or not.

        Errors as `Generator.submit`.
        """
        engine = self._started(next((seed for row in seeds for seed in row), 0))
        check_lengths(prompts, seeds, self.sampling, engine.max_model_len, "the engine")
        rows = [row for row in range(len(prompts)) if seeds[row]]
        if self._seed_per_response:
            requests = [(row, (seed,)) for row in rows for seed in seeds[row]]
        else:
            requests = [(row, (None,) * len(seeds[row])) for row in rows]
        ids = engine.add(
            [prompts[row] for row, _ in requests],
            [self.params(len(own), own[0]) for _, own in requests],
            self._lora(),
        )
        return partial(self._wait, len(prompts), dict(zip(ids, requests, strict=True)))

    @property
    def llm(self) -> Any:
        """vLLM's `LLM`, once a submission has started it."""
        return None if self._engine is None else self._engine.llm

    def close(self) -> None:
        """End the engine's processes; submissions under way are lost."""
        self._closed = True
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _started(self, seed: int) -> Engine:
        if self._closed:
            raise ResourceError("the engine was closed", hint="load the generator again")
        if self._engine is None:
            # NumPy, which vLLM seeds too, takes no more than 32 bits.
            arguments = {**self._arguments, "seed": seed % 2**32}
            self._engine = Engine(arguments, self._platform)
        return self._engine

    def _lora(self) -> Any:
        if self._adapter is None:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest("adapter", 1, str(self._adapter))

    def params(self, n: int, seed: int | None = None) -> Any:
        """vLLM's sampling parameters of a request for `n` responses, none left to a default."""
        from vllm import SamplingParams

        sampling = self.sampling
        return SamplingParams(
            n=n,
            seed=seed,
            max_tokens=sampling.max_new_tokens,
            min_tokens=0,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,  # 0 is off here too
            min_p=sampling.min_p,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            stop=[],
            bad_words=[],
            # Only these ids end a response, not what vLLM takes for the model's EOS.
            stop_token_ids=list(sampling.stop_token_ids),
            ignore_eos=True,
            logprobs=0,  # of the token drawn, and no other
            flat_logprobs=True,
            detokenize=False,
        )

    def _wait(
        self, count: int, requests: dict[str, tuple[int, tuple[int | None, ...]]]
    ) -> list[Answer]:
        while not requests.keys() <= self._finished.keys():
            if self._engine is None:
                raise ResourceError(
                    "the engine is gone, and these responses with it",
                    hint="type the same command again",
                )
            try:
                self._finished |= self._engine.step()
            except ResourceError:
                self._engine, self._closed = None, True
                raise
        responses: list[list[Response]] = [[] for _ in range(count)]
        errors: dict[int, DataError] = {}
        for request, (row, seeds) in requests.items():
            outputs = self._finished.pop(request).outputs
            try:
                if len(outputs) != len(seeds):
                    raise DataError(
                        f"prompt {row}: {len(outputs)} of {len(seeds)} responses came back"
                    )
                for output, seed in zip(outputs, seeds, strict=True):
                    responses[row].append(self._response(row, output, seed))
            except DataError as error:
                errors.setdefault(row, error)
        return [errors.get(row) or found for row, found in enumerate(responses)]

    def _response(self, prompt: int, output: Any, seed: int | None) -> Response:
        ids = list(output.token_ids)
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        logprobs = logprobs_of(ids, output.logprobs)
        return checked_response(prompt, ids, logprobs, text, self.sampling, seed)


def logprobs_of(ids: Sequence[int], found: Any) -> list[float | None]:
    """The log-prob of each drawn token, by its id; None where vLLM gives none.

    Args:
        ids: Token ids as drawn, length T.
        found: vLLM's `FlatLogprobs` of T positions, or None.
    """
    if found is None:
        return [None] * len(ids)
    places = zip(ids, found.start_indices, found.end_indices, strict=False)
    return [
        dict(zip(found.token_ids[a:b], found.logprobs[a:b], strict=True)).get(token)
        for token, a, b in places
    ]


def load(
    name_or_path: str,
    sampling: Sampling,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    tensor_parallel_size: int = 1,
    data_parallel_size: int = 1,
    enforce_eager: bool | None = None,
    seed_per_response: bool = False,
    engine: Mapping[str, Any] | None = None,
    adapter: str | Path | None = None,
) -> VLLMGenerator:
    """The generator of this back-end, by config name `vllm`; the settings are those above.

    Raises:
        ConfigError: A setting cannot be used.
    """
    if data_parallel_size != 1:
        raise ConfigError(
            "data_parallel_size: vLLM's offline engine runs one copy of the model per process",
            hint="build slices side by side (`pool build --slice 1/4`, CUDA_VISIBLE_DEVICES=0, "
            "...), use the ray back-end, or `vllm serve --data-parallel-size 4` with "
            "generation.name: server",
        )
    check_engine_arguments(engine or {})
    platform = platform_of(device)
    optional = {
        "enforce_eager": enforce_eager,
        "gpu_memory_utilization": gpu_memory_utilization,
    }
    arguments = {
        "dtype": dtype,
        "tensor_parallel_size": tensor_parallel_size,
        # -1: the longest that model and memory allow
        "max_model_len": -1 if max_model_len is None else max_model_len,
        **{name: value for name, value in optional.items() if value is not None},
        **(_room_for(Path(adapter)) if adapter else {}),
        **(engine or {}),
    }
    return VLLMGenerator(
        folder_of(name_or_path, revision),
        load_tokenizer(name_or_path, revision),
        sampling,
        arguments,
        platform,
        seed_per_response,
        Path(adapter) if adapter else None,
    )


def _room_for(adapter: Path) -> dict[str, Any]:
    """The engine arguments that an adapter needs; vLLM takes a few ranks only, and pads."""
    from vllm.config.lora import MaxLoRARanks

    rank = json.loads((adapter / "adapter_config.json").read_text("utf-8"))["r"]
    allowed = [most for most in get_args(MaxLoRARanks) if most >= rank]
    if not allowed:
        raise ConfigError(
            f"the adapter {str(adapter)!r} has rank {rank}; vLLM takes up to "
            f"{max(get_args(MaxLoRARanks))}",
            hint="sample with hf, or train with a smaller model.lora.rank",
        )
    return {"enable_lora": True, "max_lora_rank": min(allowed)}
