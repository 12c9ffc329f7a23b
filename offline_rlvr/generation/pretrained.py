"""Loading a frozen policy and its tokenizer, and telling two of them apart.

A model is `builtin`, a local folder or a hub id. Hub ids are turned into a folder of the local
cache first; from then on everything reads that folder, opens no socket and runs no code from it.
"""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import enable_progress_bars
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from offline_rlvr.durable import file_sha256
from offline_rlvr.errors import ConfigError, IncompatibleError, ResourceError

# Bars for reading and writing weights would run through ours; those of hub downloads stay.
logging.disable_progress_bar()
enable_progress_bars()

#: Name of the small model that comes with the package.
BUILTIN = "builtin"
BUILTIN_FOLDER = Path(__file__).parents[1] / "builtin"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: What a causal language model needs; weights in formats that can run code are never fetched.
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]

#: Bookkeeping in config.json that changes without changing the function.
_CONFIG_NOISE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}


def folder_of(name_or_path: str | Path, revision: str | None = None) -> Path:
    """The local folder of a model; a hub id is downloaded where the cache does not have it.

    Raises:
        ConfigError: There is no such folder.
        IncompatibleError: The folder is not a transformers model.
        ResourceError: The hub has no such model, or cannot be reached.
    """
    name = str(name_or_path)
    folder = BUILTIN_FOLDER if name == BUILTIN else Path(name).expanduser()
    if not folder.is_dir():
        if name == BUILTIN or folder.exists() or not _is_hub_id(name_or_path):
            raise ConfigError(
                f"there is no model folder {name!r}",
                hint=f"give a folder with config.json, a hub id (Qwen/Qwen3-0.6B) or {BUILTIN!r}",
            )
        folder = _download(name, revision)
    if not (folder / "config.json").is_file():
        raise IncompatibleError(
            f"{str(folder)!r} is not a model: it has no config.json",
            hint="save it with model.save_pretrained(folder); for an adapter give the base model "
            "here and the adapter's folder as adapter",
        )
    return folder


def load_tokenizer(
    name_or_path: str | Path, revision: str | None = None
) -> PreTrainedTokenizerBase:
    """The model's tokenizer, padding on the left. Errors as `folder_of`."""
    folder = folder_of(name_or_path, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, padding_side="left"
        )
    except (OSError, ValueError, KeyError) as error:
        raise IncompatibleError(
            f"{str(folder)!r} has no tokenizer that transformers can load: {error}",
            hint="save it there with tokenizer.save_pretrained(folder)",
        ) from error
    return tokenizer


def load_model(
    name_or_path: str | Path,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    adapter: str | Path | None = None,
) -> PreTrainedModel:
    """The model in eval mode, every dropout probability 0, so that a log-prob is one number.

    Args:
        name_or_path: `builtin`, a folder or a hub id.
        revision: Commit or tag of a hub id.
        dtype: `float32`, `bfloat16` or `float16`.
        device: `auto` (CUDA where there is one), `cpu`, `cuda`, `cuda:1`, ...
        adapter: Folder of a PEFT adapter put on top, not merged (merging in bfloat16 changes the
            weights).

    Raises:
        ConfigError: No such folder, dtype or device.
        IncompatibleError: The folder holds no causal language model in safetensors, or no adapter
            for it.
        ResourceError: As `folder_of`.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    place = resolve_device(device)
    folder = folder_of(name_or_path, revision)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise IncompatibleError(
            f"{str(folder)!r} holds no causal language model that transformers can load: {error}",
            hint="it needs config.json of a causal language model and model.safetensors",
        ) from error
    model, report = loaded
    # transformers only warns, and goes on with random numbers in their place.
    if absent := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise IncompatibleError(
            f"the weights in {str(folder)!r} lack {len(absent)} tensors of the model, or have them "
            f"in another shape: {', '.join(absent[:3])}"
        )
    if adapter is not None:
        model = _with_adapter(model, Path(adapter).expanduser())
    disable_dropout(model)
    return model.to(place).eval()


def resolve_device(device: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: The device is unknown or not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device is {device!r}; allowed: auto, cpu, cuda, cuda:N") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {device!r}, but there are {torch.cuda.device_count()} CUDA devices",
            hint="use auto or cpu",
        )
    return place


def forward_facts(device: str) -> dict[str, Any]:
    """What the last bits of a forward pass depend on beside model and batch; JSON values."""
    place = resolve_device(device)
    kernels = torch.backends.cpu.get_cpu_capability()
    return {
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else kernels,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("offline-rlvr", "torch", "transformers")},
    }


def disable_dropout(model: Any) -> None:
    """Set every dropout probability to 0, in modules and in the config, whatever the mode.

    Modes alone are not enough: attention dropout is a plain number on the module, and a log-prob
    pass inside a training step runs in train mode.
    """
    for holder in [model.config, *model.modules()]:
        for name, value in list(vars(holder).items()):
            if ("drop" in name or name == "p") and isinstance(value, float):
                setattr(holder, name, 0.0)
    for config in getattr(model, "peft_config", {}).values():
        if hasattr(config, "lora_dropout"):
            config.lora_dropout = 0.0


def fingerprint(
    name_or_path: str | Path, revision: str | None = None, adapter: str | Path | None = None
) -> dict[str, Any]:
    """What makes a policy this policy, as hashes: two equal fingerprints sample alike.

    Returns:
        `weights`: sha256 of every safetensors file, by name; `config`, `tokenizer`,
        `chat_template`: sha256 of their canonical JSON (`chat_template` is None where there is
        none); `adapter`: sha256 of the adapter's files by name, or None. Errors as `folder_of`, and
        IncompatibleError where there are no weights.
    """
    folder = folder_of(name_or_path, revision)
    weights = {path.name: file_sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    if not weights:
        raise IncompatibleError(f"{str(folder)!r} holds no *.safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    tokenizer = load_tokenizer(folder)
    template = tokenizer.chat_template
    return {
        "weights": weights,
        "config": _digest({k: v for k, v in config.items() if k not in _CONFIG_NOISE}),
        "tokenizer": tokenizer_hash(tokenizer),
        "chat_template": None if template is None else _digest(template),
        "adapter": None if adapter is None else _adapter_hashes(Path(adapter).expanduser()),
    }


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 over what decides ids: vocabulary, merges, normalization, special ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # Python tokenizers have no such file; their vocabulary is what there is.
        content: dict[str, Any] = {
            "class": type(tokenizer).__name__,
            "vocab": tokenizer.get_vocab(),
        }
    else:
        content = json.loads(backend.to_str())
        content = {k: v for k, v in content.items() if k not in ("padding", "truncation")}
    roles = ("bos", "eos", "pad", "unk")
    content["special_ids"] = {role: getattr(tokenizer, f"{role}_token_id") for role in roles}
    return _digest(content)


def _is_hub_id(name: str | Path) -> bool:
    """`name` or `owner/name`; everything else can only be a path."""
    parts = str(name).split("/")
    return isinstance(name, str) and len(parts) <= 2 and all(p and p[0] not in ".~" for p in parts)


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except HFValidationError as error:
        raise ConfigError(f"{name!r} is neither a folder nor a hub id: {error}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        at = "" if revision is None else f" at revision {revision!r}"
        raise ResourceError(
            f"there is no folder {name!r}, and the hub model{at} cannot be had: {error}",
            hint="check the spelling; without a network download it beforehand and give its folder",
        ) from error


def _with_adapter(model: PreTrainedModel, adapter: Path) -> Any:
    from peft import PeftModel

    _adapter_hashes(adapter)
    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=False)
    except (RuntimeError, ValueError, KeyError) as error:
        raise IncompatibleError(
            f"the adapter {str(adapter)!r} does not fit this model: {error}"
        ) from error


def _adapter_hashes(adapter: Path) -> dict[str, str]:
    files = [adapter / "adapter_config.json", adapter / "adapter_model.safetensors"]
    if missing := [path.name for path in files if not path.is_file()]:
        raise IncompatibleError(
            f"{str(adapter)!r} is not a PEFT adapter: it has no {' and no '.join(missing)}",
            hint="save it with peft_model.save_pretrained(folder)",
        )
    return {path.name: file_sha256(path) for path in files}


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
