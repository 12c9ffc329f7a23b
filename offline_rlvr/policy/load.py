"""From a model name to a `Policy`, from a policy to a folder, and back bit for bit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.generation.pretrained import folder_of, load_model
from offline_rlvr.policy.compatibility import packable
from offline_rlvr.policy.model import Policy

ADAPTER_FILE = "adapter_model.safetensors"


class Lora(TypedDict, total=False):
    """LoRA settings: `rank` (16), `alpha` (2 x rank), `target_modules` (names, or `all-linear`)."""

    rank: int
    alpha: float
    target_modules: str | Sequence[str]


def load_policy(
    name_or_path: str | Path,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    lora: Lora | Mapping[str, Any] | None = None,
    temperature: float = 1.0,
    gradient_checkpointing: bool = False,
    compile: bool = False,
    adapter: str | Path | None = None,
    attention: str | None = None,
) -> Policy:
    """A policy ready to train: dropout 0, train mode.

    Args:
        name_or_path: `builtin`, a folder or a hub id.
        revision: Commit or tag of a hub id.
        dtype: `float32`, `bfloat16` or `float16`; a LoRA adapter stays float32.
        device: `auto`, `cpu`, `cuda`, `cuda:1`, ...
        lora: Train a fresh LoRA adapter with these settings instead of all weights.
        temperature: The pool's recorded sampling temperature.
        gradient_checkpointing: Make activations again in the backward pass: less memory, more time.
        compile: See `Policy.compile_layers`.
        adapter: Folder of a LoRA adapter to go on training.
        attention: Attention back-end; by default the fastest exact one.

    Raises:
        ConfigError: Both `lora` and `adapter`, or settings that cannot be used.
        IncompatibleError: A model that cannot be packed exactly, or an adapter that does not fit.
        ResourceError: A hub model that cannot be had.
    """
    if lora is not None and adapter is not None:
        raise ConfigError(
            "both lora (a fresh adapter) and adapter (one to continue) are given",
            hint="leave out lora: the adapter folder brings its own rank and target modules",
        )
    model: PreTrainedModel | PeftModel = load_model(name_or_path, revision, dtype, device)
    packable(model)
    if lora is not None:
        base, revision = _base_name(name_or_path, revision)
        model = fresh_lora(model, lora, base, revision)
    elif adapter is not None:
        model = _continued_lora(model, Path(adapter).expanduser())
    policy = Policy(model, temperature, attention=attention)
    policy.checkpoint_activations(gradient_checkpointing)
    if compile:
        policy.compile_layers()
    return policy.train()


def save_policy(
    policy: Policy,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    weights: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write weights (safetensors), config and tokenizer to a folder.

    Full models open with transformers' `from_pretrained`, LoRA adapters with PEFT's; an adapter
    records its base.

    Args:
        policy: Whose model is saved.
        folder: Is made.
        tokenizer: Saved beside it.
        weights: State of `policy.model`, when it holds only its part of each (fsdp2).
    """
    if isinstance(policy.model, PeftModel):
        # "auto" would ask the hub whether the base vocabulary was resized.
        policy.model.save_pretrained(str(folder), save_embedding_layers=False, state_dict=weights)
    else:
        policy.causal_lm.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)


def load_weights(policy: Policy, folder: str | Path) -> None:
    """Put the weights of a `save_policy` folder into a policy of the same shape, bit for bit.

    Raises:
        DataError: Files are missing or damaged.
        IncompatibleError: The folder holds another architecture, or weights in other shapes.
    """
    folder = Path(folder)
    is_adapter = isinstance(policy.model, PeftModel)
    if not any(folder.glob(ADAPTER_FILE if is_adapter else "model*.safetensors")):
        raise DataError(
            f"{str(folder)!r} holds no {ADAPTER_FILE if is_adapter else 'model*.safetensors'}",
            hint="give a folder written by save_policy for the same kind of policy (full or LoRA)",
        )
    try:
        if isinstance(policy.model, PeftModel):
            problems = _load_adapter(policy.model, folder)
        else:
            problems = _load_full(policy.causal_lm, folder)
    except (SafetensorError, OSError) as error:
        raise DataError(f"the weights in {str(folder)!r} cannot be read: {error}") from error
    except (RuntimeError, ValueError) as error:
        problems = str(error).splitlines()[:3]  # PyTorch lists every tensor
    if problems:
        raise IncompatibleError(
            f"the weights in {str(folder)!r} do not fit this policy: {'; '.join(problems)}",
            hint="start the policy from the model and LoRA settings that the folder was saved with",
        )


def _load_full(model: PreTrainedModel, folder: Path) -> list[str]:
    """Through transformers, which knows how each architecture names its weights on disk."""
    dtype = next(model.parameters()).dtype
    saved, info = type(model).from_pretrained(  # pyright: ignore
        folder, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    problems = [f"{kind}: {sorted(map(str, info[kind]))[:3]}" for kind in info if info[kind]]
    if not problems:
        model.load_state_dict(saved.state_dict())
    return problems


def _load_adapter(model: PeftModel, folder: Path) -> list[str]:
    state = load_file(folder / ADAPTER_FILE)
    result = set_peft_model_state_dict(model, state)
    missing = [name for name in result.missing_keys if "lora_" in name]
    found = {"missing": missing, "unexpected": result.unexpected_keys}
    return [f"{kind}: {sorted(names)[:3]}" for kind, names in found.items() if names]


def _base_name(name_or_path: str | Path, revision: str | None) -> tuple[str, str | None]:
    """What an adapter records as its base: a folder's path, or the hub id with its revision."""
    folder = folder_of(name_or_path, revision)
    is_hub = not Path(name_or_path).expanduser().is_dir() and str(name_or_path) != "builtin"
    return (str(name_or_path), revision) if is_hub else (str(folder.resolve()), None)


def fresh_lora(
    model: PreTrainedModel, lora: Mapping[str, Any], base: str, revision: str | None = None
) -> PeftModel:
    """The model under a new adapter; `base` and `revision` are recorded in it.

    Raises:
        ConfigError: Settings that cannot be used.
    """
    unknown = sorted(set(lora) - set(Lora.__annotations__))
    if unknown:
        raise ConfigError(
            f"unknown LoRA settings: {', '.join(unknown)}",
            hint=f"allowed: {', '.join(Lora.__annotations__)}",
        )
    rank = lora.get("rank", 16)
    alpha = lora.get("alpha", 2 * rank)
    modules = lora.get("target_modules", "all-linear")
    if not isinstance(modules, str):
        modules = list(modules)
    try:
        config = LoraConfig(
            r=rank,
            lora_alpha=alpha,  # pyright: ignore
            target_modules=modules,
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        adapted = get_peft_model(model, config)
    except ValueError as error:
        names = sorted(
            {
                name.rpartition(".")[2]
                for name, module in model.named_modules()
                if isinstance(module, torch.nn.Linear)
                and module is not model.get_output_embeddings()
            }
        )
        raise ConfigError(
            f"LoRA with rank {rank}, alpha {alpha}, target_modules {modules} cannot be used: "
            f"{error}",
            hint=f"rank at least 1, target_modules from {', '.join(names)} or all-linear",
        ) from error
    config.base_model_name_or_path, config.revision = base, revision
    return adapted  # pyright: ignore


def _continued_lora(model: PreTrainedModel, adapter: Path) -> PeftModel:
    if not (adapter / ADAPTER_FILE).is_file():
        raise ConfigError(f"{str(adapter)!r} holds no {ADAPTER_FILE}")
    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    except (RuntimeError, ValueError, KeyError) as error:
        raise IncompatibleError(
            f"the adapter {str(adapter)!r} does not fit this model: {error}"
        ) from error
