"""The processes of a training, one per device: what they agree on and what they add up.

Every process works on its own groups and reaches the same result by sums and gathered objects, in
order of rank. Objects travel over gloo, which notices at once when a process has gone; gradients
of a GPU over NCCL.
"""

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store

from offline_rlvr.errors import ConfigError, OfflineRlvrError, ResourceError
from offline_rlvr.generation.pretrained import resolve_device
from offline_rlvr.trainer.memory import is_out_of_memory

T = TypeVar("T")

#: Gradients that are added at once, float32 values (64 MiB, and less than as much again).
BUCKET = 1 << 24
#: The others wait while the first process evaluates; one that has died is noticed otherwise.
TIMEOUT = datetime.timedelta(days=7)


@dataclass(frozen=True)
class Ranks:
    """Which of the processes this one is; by default the only one.

    Attributes:
        rank: Of this process; 0 is the command that a person typed, and alone writes to the run.
        size: Number of processes.
        sharded: Each holds a part of every weight (fsdp2): forward and backward passes are made
            together.
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The values of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # pyright: ignore

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first process makes."""
        if self.size == 1:
            return make()
        values = [make() if self.first else None]
        dist.broadcast_object_list(values, src=0)
        return values[0]  # pyright: ignore

    def together(self, work: Callable[[], T]) -> list[T]:
        """Do a share of the work in every process; the results, in order of rank.

        Raises:
            MemoryError: In all processes, when one of them ran out of memory.
            OfflineRlvrError: In all processes, when one of them refused: the error of the lowest
                rank.
            ResourceError: Out of memory while the weights are sharded: the other processes are in
                the middle of a pass.
        """
        if self.size == 1:
            return [work()]
        result, error = None, None
        try:
            result = work()
        except OfflineRlvrError as refusal:
            if self.sharded:
                raise
            error = refusal.with_traceback(None)
        except (RuntimeError, MemoryError) as failure:
            if not is_out_of_memory(failure):
                raise
            reason = str(failure).split("\n")[0] or type(failure).__name__
            if self.sharded:
                raise ResourceError(
                    f"a device ran out of memory ({reason}); an update of sharded weights cannot "
                    "be done again at once",
                    hint="start a new run with a smaller train.micro_batch_tokens",
                ) from failure
            error = MemoryError(reason)
        return _results(self.gather((result, error)))

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes, in float32.

        Sharded weights have been added in the backward passes already.
        """
        if self.size == 1 or self.sharded:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        present = self.gather([parameter.grad is not None for parameter in trained])
        gradients = []
        for parameter, anywhere in zip(trained, map(any, zip(*present, strict=True)), strict=True):
            if anywhere and parameter.grad is None:  # no group of this process
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        parts = [part for gradient in gradients for part in gradient.view(-1).split(BUCKET)]
        bucket: list[Tensor] = []
        for part in parts:
            bucket.append(part)
            if sum(map(torch.numel, bucket)) >= BUCKET:
                _add(bucket)
                bucket = []
        _add(bucket)

    def device(self, name: str) -> torch.device:
        """This process's device, by the config's `model.device`."""
        place = resolve_device(name)
        if self.size > 1 and place.type == "cuda":
            return torch.device("cuda", self.rank)
        return place


def _add(gradients: list[Tensor]) -> None:
    if not gradients:
        return
    flat = torch.cat([gradient.float() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part)


def _results(outcomes: list[tuple[T | None, Exception | None]]) -> list[T]:
    errors = [error for _, error in outcomes if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, MemoryError)):
        raise error
    return [result for result, _ in outcomes]  # pyright: ignore


def count_devices(wanted: int | str, device: str) -> int:
    """How many devices `train.devices` means.

    Args:
        wanted: A number, or `auto`: every GPU that is visible, one CPU.
        device: The config's `model.device`.

    Raises:
        ConfigError: More than there are, or several where `model.device` names one.
    """
    place = resolve_device(device)
    if place.type != "cuda":
        return 1 if wanted == "auto" else int(wanted)
    there = 1 if place.index is not None else torch.cuda.device_count()
    number = there if wanted == "auto" else int(wanted)
    if number > there:
        seen = f"{there} visible (CUDA_VISIBLE_DEVICES)"
        raise ConfigError(
            f"train.devices is {number}; model.device is {device}, "
            + (seen if place.index is None else "one device"),
            hint="set train.devices to auto, and model.device to cuda or cpu",
        )
    return number


def join(ranks: Ranks, store: Store, device: torch.device) -> None:
    """Meet the other processes, which all call this."""
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=TIMEOUT
    )
