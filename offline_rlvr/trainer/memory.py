"""How many tokens a forward pass may hold, and what to do when it was too many.

    bytes = weights + gradients and Adam's moments of what is trained + tokens x bytes per token

The arithmetic is an estimate; running out of memory in spite of it costs time only, since the whole
update is then done again with smaller micro-batches.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from offline_rlvr.policy.logprobs import LOGITS_BYTES

#: Bytes per trained float32 weight: its gradient, Adam's two moments.
BYTES_PER_TRAINED_WEIGHT = 12
#: Tensors per layer and token that the backward pass needs: hidden-sized ones (residuals, norms,
#: projections, the blocks of the attention), and those of the MLP.
HIDDEN_TENSORS_PER_LAYER = 16
MLP_TENSORS_PER_LAYER = 4
#: Tiles of float32 logits that exist at once: the logits, their gradient, a product.
TILES = 3
#: Share of the free memory that is planned with; the rest is for other programs and fragments.
USED_SHARE = 0.8
MOST_TOKENS = {"cpu": 16384, "cuda": 65536}
#: Multiplications of a layer's matrix product from which a CPU is as fast as it gets.
FAST_PRODUCT = 1 << 29
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
        inner: Size of the MLP.
    """

    weights: int
    trained: int
    layers: int
    hidden: int
    inner: int

    @classmethod
    def of(cls, model: nn.Module, config: Any) -> "ModelShape":
        """Of a transformers model (or one with an adapter) and its config."""
        sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
        hidden = config.hidden_size
        return cls(
            sum(size for size, _ in sizes),
            sum(size for size, trained in sizes if trained),
            config.num_hidden_layers,
            hidden,
            getattr(config, "intermediate_size", None) or 4 * hidden,
        )

    @property
    def state_bytes(self) -> int:
        """Gradients and Adam's moments."""
        return self.trained * BYTES_PER_TRAINED_WEIGHT

    def bytes_per_token(self, checkpointing: bool) -> int:
        """Activations kept for the backward pass, float32."""
        per_layer = HIDDEN_TENSORS_PER_LAYER * self.hidden + MLP_TENSORS_PER_LAYER * self.inner
        return 4 * self.layers * (self.hidden if checkpointing else per_layer)


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
    limit, used = (_number(Path("/sys/fs/cgroup") / f"memory.{n}") for n in ("max", "current"))
    if limit is not None and used is not None:  # a container or a batch job
        available = min(available, limit - used)
    process = psutil.Process()
    if hasattr(process, "rlimit"):  # ulimit -v
        allowed = process.rlimit(psutil.RLIMIT_AS)[0]
        if allowed != psutil.RLIM_INFINITY:
            available = min(available, allowed - process.memory_info().vms)
    return max(0, available)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no cgroup of version 2, or "max"
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a failed operation asked for more memory than there is."""
    refused = any(said in str(error) for said in CPU_REFUSALS)
    return refused or isinstance(error, (torch.OutOfMemoryError, MemoryError))
