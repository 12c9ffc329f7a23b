"""How many tokens a forward pass may hold, and what to do when it was too many.

    bytes = weights + gradients and Adam's moments of what is trained + tokens x bytes per token

The arithmetic is an estimate; running out of memory in spite of it costs time only, since the whole
update is then done again with smaller micro-batches.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from offline_rlvr.errors import ResourceError
from offline_rlvr.policy.logprobs import LOGITS_BYTES

#: Bytes per trained float32 weight: its gradient, Adam's two moments.
BYTES_PER_TRAINED_WEIGHT = 12
#: Tensors per layer and token that the backward pass needs: hidden-sized ones (residuals, norms),
#: those as wide as all attention heads (projections, blocks of the attention), those of the MLP.
HIDDEN_TENSORS_PER_LAYER = 4
HEAD_TENSORS_PER_LAYER = 12
MLP_TENSORS_PER_LAYER = 4
#: Tiles of float32 logits that exist at once: the logits, their gradient, a product.
TILES = 3
#: Share of the free memory that is planned with; the rest is for other programs and fragments.
USED_SHARE = 0.8
MOST_TOKENS = {"cpu": 16384, "cuda": 65536}
#: Multiplications of a layer's matrix product from which a CPU is as fast as it gets.
FAST_PRODUCT = 1 << 31
LEAST_TOKENS = 256
#: What torch says when a CPU allocation is refused.
CPU_REFUSALS = ("can't allocate memory", "std::bad_alloc")


@dataclass(frozen=True)
class ModelShape:
    """What the memory of a training depends on.

    Attributes:
        weights: Parameters of the model.
        trained: Those that get a gradient.
        layers: Transformer layers.
        hidden: Size of a hidden state.
        heads: Size of all attention heads together.
        inner: Size of the MLP.
    """

    weights: int
    trained: int
    layers: int
    hidden: int
    heads: int
    inner: int

    @classmethod
    def of(cls, model: nn.Module, config: Any) -> "ModelShape":
        """Of a transformers model (or one with an adapter) and its config."""
        sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
        hidden = config.hidden_size
        head = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
        return cls(
            sum(size for size, _ in sizes),
            sum(size for size, trained in sizes if trained),
            config.num_hidden_layers,
            hidden,
            head * config.num_attention_heads,
            getattr(config, "intermediate_size", None) or 4 * hidden,
        )

    @property
    def state_bytes(self) -> int:
        """Gradients and Adam's moments."""
        return self.trained * BYTES_PER_TRAINED_WEIGHT

    def bytes_per_token(self, checkpointing: bool) -> int:
        """Activations kept for the backward pass, float32."""
        per_layer = (
            HIDDEN_TENSORS_PER_LAYER * self.hidden
            + HEAD_TENSORS_PER_LAYER * self.heads
            + MLP_TENSORS_PER_LAYER * self.inner
        )
        if checkpointing:  # every layer's input, and one layer made again
            return 4 * (self.layers * self.hidden + per_layer)
        return 4 * self.layers * per_layer


def choose_token_budget(
    shape: ModelShape,
    device: torch.device,
    checkpointing: bool,
    *,
    loaded: bool = True,
    sharing: int = 1,
) -> int:
    """The largest power of two whose activations fit into the free memory beside the states.

    A power of two, and never above `MOST_TOKENS`, so that the same job gets the same micro-batches,
    and thereby the same rounding, on machines that differ a little.

    Args:
        shape: The model.
        device: Where it trains.
        checkpointing: Whether every layer's activations are made again in the backward pass.
        loaded: Whether the weights are in memory already.
        sharing: Processes that train in the same memory.
    """
    most = MOST_TOKENS.get(device.type, MOST_TOKENS["cpu"])
    states = shape.state_bytes + (0 if loaded else 4 * shape.weights)
    room = USED_SHARE * free_memory(device) / sharing - states - TILES * LOGITS_BYTES
    fitting = int(room / shape.bytes_per_token(checkpointing))
    return 1 << (min(most, max(LEAST_TOKENS, fitting)).bit_length() - 1)


def choose_pack_tokens(shape: ModelShape, device: torch.device) -> int:
    """How many tokens of several groups are worth one forward pass: more would only take memory.

    A GPU has ever more to gain from them, and takes what the budget allows.
    """
    if device.type != "cpu":
        return MOST_TOKENS["cuda"]
    fast = FAST_PRODUCT // (shape.hidden * shape.inner)
    return 1 << (min(MOST_TOKENS["cpu"], max(LEAST_TOKENS, fast)).bit_length() - 1)


def free_memory(device: torch.device) -> int:
    """Bytes that this process could still allocate."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    available = psutil.virtual_memory().available
    available = min([available, *(_room_in(group) for group in _control_groups())])
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # ulimit -v
        allowed = process.rlimit(psutil.RLIMIT_AS)[0]
        if allowed != psutil.RLIM_INFINITY:
            available = min(available, allowed - process.memory_info().vms)
    return max(0, available)


def _control_groups() -> list[Path]:
    """The cgroups (version 2) that limit this process's memory, of a container or a batch job."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return []
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = root / own.lstrip("/")
    groups = [group, *group.parents]
    return [folder for folder in groups if (folder / "memory.max").is_file()]


def _room_in(group: Path) -> int:
    """Bytes below a cgroup's limit, files in the page cache not counted."""
    limit = (group / "memory.max").read_text().strip()
    if limit == "max":
        return sys.maxsize
    used = int((group / "memory.current").read_text())
    facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(limit) - used + int(facts.get("inactive_file", 0))


@contextmanager
def beyond_retry(what: str) -> Iterator[None]:
    """Work that smaller micro-batches would not help: running out of memory ends the training.

    Raises:
        ResourceError: Out of memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ResourceError(
            f"out of memory while {what}; the update does not count",
            hint="use model.lora, a smaller model or a device with more memory; every finished "
            "update up to the last checkpoint is kept",
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a failed operation asked for more memory than there is."""
    refused = any(said in str(error) for said in CPU_REFUSALS)
    return refused or isinstance(error, (torch.OutOfMemoryError, MemoryError))
