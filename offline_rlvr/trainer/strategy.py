"""Lightning's DDP strategy for processes that exist already and add up their own gradients.

`DistributedDataParallel` is left out: it averages over the processes where an update's shares add
up, reduces at every backward pass or not at all, and knows no retry of a whole update after one
device ran out of memory.
"""

from collections.abc import Mapping
from typing import Any

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.optim import Optimizer

from offline_rlvr.trainer import sharding
from offline_rlvr.trainer.ranks import Ranks


class RankEnvironment(LightningEnvironment):
    """Tells Lightning which process this is; it starts none."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks = ranks

    @property
    def creates_processes_externally(self) -> bool:
        """Always."""
        return True

    def local_rank(self) -> int:
        """Of one node's processes."""
        return self.ranks.rank


class RankStrategy(DDPStrategy):
    """Whole weights in every process (ddp), or a part of each (fsdp2)."""

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks = ranks

    def configure_ddp(self) -> None:
        """Called between loading the weights and making the optimizer: shards, wraps nothing."""
        if self.ranks.sharded:
            assert self.lightning_module is not None
            sharding.shard(self.lightning_module.policy)  # pyright: ignore

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Over gloo, which notices a process that has gone."""
        self.ranks.gather(None)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As a single process would have it; every process takes part."""
        return sharding.whole(super().optimizer_state(optimizer))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """From the state of a single process."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(sharding.like_parameters(optimizer, state))
