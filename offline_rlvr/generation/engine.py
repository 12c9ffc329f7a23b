"""A vLLM engine with exact settings: started, watched, and ended with everything it started."""

# vLLM is optional; where it is missing, pyright takes the module of that name beside this one.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import contextlib
import dataclasses
import difflib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any, NoReturn

from offline_rlvr.errors import ConfigError, ResourceError
from offline_rlvr.generation import engine_guard

#: Space for keys and values on a CPU, where vLLM would otherwise ask for 92 % of all memory.
CPU_KV_CACHE_BYTES = 2 * 2**30

#: What may be set where, and why not in `engine`.
_ELSEWHERE = {
    "model": "model.name_or_path",
    "tokenizer": "model.name_or_path",
    "revision": "model.revision",
    "tokenizer_revision": "model.revision",
    "dtype": "model.dtype",
    "seed": "pool.seed",
    "max_model_len": "generation.max_model_len",
    "gpu_memory_utilization": "generation.gpu_memory_utilization",
    "tensor_parallel_size": "generation.tensor_parallel_size",
    "data_parallel_size": "generation.data_parallel_size",
    "enforce_eager": "generation.enforce_eager",
}
#: Each would sample from another distribution than the model's, store other log-probs than those of
#: the distribution sampled from, or run code from the model's folder.
_INEXACT = {
    "code_revision",
    "generation_config",
    "hf_overrides",
    "kv_cache_dtype",
    "load_format",
    "logits_processors",
    "logprobs_mode",
    "model_class_overrides",
    "override_generation_config",
    "quantization",
    "quantization_config",
    "skip_tokenizer_init",
    "spec_method",
    "spec_model",
    "spec_tokens",
    "speculative_config",
    "trust_remote_code",
    "watermark_config",
}

_MISSING = (
    "pip install 'offline-rlvr[vllm]' on a machine with CUDA, scripts/install_vllm_cpu on one "
    "without; or set generation.name: hf"
)
_CANNOT_START = (
    "the cause is in vLLM's log above (VLLM_LOGGING_LEVEL=INFO shows more); for memory lower "
    "generation.gpu_memory_utilization or generation.max_model_len, or raise "
    "generation.tensor_parallel_size"
)


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse engine arguments that are set elsewhere or would make log-probs inexact.

    Raises:
        ConfigError: Names the argument and the reason.
    """
    for name in arguments:
        if name in _ELSEWHERE:
            raise ConfigError(
                f"engine.{name} cannot be set here", hint=f"set {_ELSEWHERE[name]} instead"
            )
        if name in _INEXACT:
            raise ConfigError(
                f"engine.{name} cannot be set: responses would not be drawn from the model's own "
                "distribution, or their log-probs would not be those of it",
                hint="leave it out",
            )


def platform_of(device: str) -> str:
    """`cpu` or `cuda`: what the installed vLLM is built for.

    Args:
        device: `auto`, or the one that it must be.

    Raises:
        ConfigError: `device` is none of `auto`, `cpu`, `cuda`.
        ResourceError: vLLM is missing, broken, or built for the other one.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(
            f"model.device is {device!r}; the vllm back-end takes auto, cpu or cuda",
            hint="choose GPUs with CUDA_VISIBLE_DEVICES=1 and model.device: cuda",
        )
    if importlib.util.find_spec("vllm") is None:
        raise ResourceError("generation.name is vllm, but vLLM is not installed", hint=_MISSING)
    _set_environment()
    try:
        from vllm.platforms import current_platform
    except (ImportError, RuntimeError, OSError) as error:
        raise ResourceError(f"vLLM cannot be imported: {error}", hint=_MISSING) from error
    built_for = "cpu" if current_platform.is_cpu() else "cuda"
    if device not in ("auto", built_for):
        raise ResourceError(
            f"model.device is {device!r}, but the vLLM installed here is built for {built_for}",
            hint=_MISSING,
        )
    return built_for


class Engine:
    """The engine's processes, from their start to their end; for use from one thread.

    Args:
        arguments: Of vLLM's `LLM`, beyond those that are the same for every engine of ours.
        platform: What vLLM is built for.

    Attributes:
        llm: vLLM's `LLM`.
        max_model_len: Positions of a prompt with its response, where needed fitted to the memory.

    Raises:
        ConfigError: vLLM does not take these arguments.
        ResourceError: It could not start.
    """

    def __init__(self, arguments: Mapping[str, Any], platform: str):
        try:
            from vllm import LLM
            from vllm.engine.arg_utils import EngineArgs
        except (ImportError, RuntimeError, OSError) as error:
            raise ResourceError(f"vLLM cannot be imported: {error}", hint=_MISSING) from error
        _check_names(arguments, [field.name for field in dataclasses.fields(EngineArgs)])
        self._guard = _start_guard()
        try:
            self.llm: Any = LLM(**(_defaults(arguments, platform) | dict(arguments)))
        except (ValueError, TypeError) as error:
            self._end_guard()
            raise ConfigError(
                f"vLLM does not take these settings: {error}",
                hint="see generation, generation.engine and model in the config",
            ) from error
        except (RuntimeError, OSError, MemoryError) as error:
            self._end_guard()
            raise ResourceError(f"vLLM could not start: {error}", hint=_CANNOT_START) from error
        self._client: Any = self.llm.llm_engine.engine_core
        cores = self._client.resources.engine_manager.processes
        _tell(self._guard, " ".join(str(core.pid) for core in cores))
        self._closed = threading.Event()
        threading.Thread(
            target=self._watch, args=([core.sentinel for core in cores],), daemon=True
        ).start()
        self.max_model_len: int = self.llm.model_config.max_model_len

    def add(
        self, prompts: Sequence[Sequence[int]], params: Sequence[Any], lora: Any = None
    ) -> list[str]:
        """Queue one request per prompt; returns the ids that `step` will answer with.

        Args:
            prompts: Token ids.
            params: vLLM's sampling parameters of each.
            lora: vLLM's `LoRARequest` for all; None: the model without an adapter.

        Raises:
            ResourceError: The engine died.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            ids = self.llm.enqueue(
                [{"prompt_token_ids": list(prompt)} for prompt in prompts],
                params,
                lora_request=lora,
                use_tqdm=False,
            )
        except EngineDeadError as error:
            self._died(error)
        # vLLM appends "-" and a random suffix to its own running number, and answers without it.
        return [number.partition("-")[0] for number in ids]

    def step(self) -> dict[str, Any]:
        """Wait for the engine's next output; returns the requests that it finished, by id.

        Raises:
            ResourceError: The engine died.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            outputs = self.llm.llm_engine.step()
        except EngineDeadError as error:
            self._died(error)
        return {output.request_id: output for output in outputs if output.finished}

    def close(self) -> None:
        """End the engine's processes; returns when they are gone."""
        self._closed.set()
        self._client.shutdown()
        self._end_guard()

    def _end_guard(self) -> None:
        """Have the guard end what is left of the engine, and then itself."""
        _tell(self._guard, None)
        self._guard.wait()

    def _died(self, error: Exception) -> NoReturn:
        self.close()
        raise ResourceError(
            "the vLLM engine died while it was sampling; nothing of the groups under way is kept",
            hint="its log above has the cause; for memory lower generation.gpu_memory_utilization "
            "or set generation.engine.max_num_seqs; then type the same command again",
        ) from error

    def _watch(self, sentinels: list[int]) -> None:
        """Wake up a `step` whose engine was killed: vLLM's own client would wait for ever."""
        from vllm.v1.engine.exceptions import EngineDeadError

        wait(sentinels)
        if not self._closed.is_set():
            self._client.outputs_queue.put(EngineDeadError())


def _start_guard() -> "subprocess.Popen[str]":
    # A child of this process that is none of the engine's: it must be there before the guard is.
    resource_tracker.ensure_running()
    return subprocess.Popen(
        # -P: with this folder on its path, `import vllm` would find our module of that name.
        [sys.executable, "-P", engine_guard.__file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C must not end it before its owner
    )


def _tell(guard: "subprocess.Popen[str]", line: str | None) -> None:
    """Write a line to the guard; None ends its input."""
    assert guard.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # somebody killed it
        if line is None:
            guard.stdin.close()
        else:
            guard.stdin.write(line + "\n")
            guard.stdin.flush()


def _set_environment() -> None:
    """What vLLM reads from the environment; what the user set stays, but for the last."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A fork would copy locks that threads of this process hold.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # The engine must go on sampling while this process does other work.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"


def _check_names(arguments: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in arguments:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            raise ConfigError(
                f"vLLM has no engine argument {name!r}",
                hint=f"did you mean {near[0]!r}?" if near else "see `vllm serve --help=all`",
            )


def _defaults(arguments: Mapping[str, Any], platform: str) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        # Settings not sent with a request come from nowhere, and least of all from the model.
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        # Ids in, ids out: vLLM's tokenizer has no say.
        "skip_tokenizer_init": True,
        "load_format": "safetensors",
        "trust_remote_code": False,
        "enable_prefix_caching": True,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
    }
    if platform == "cpu":
        fixed["enforce_eager"] = True
        if "gpu_memory_utilization" not in arguments:
            fixed["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    return fixed
