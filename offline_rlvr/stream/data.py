"""Minibatches of whole groups from the pool, update by update, as a Lightning data module."""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from offline_rlvr.batch import PoolBatch
from offline_rlvr.pool import GroupArrays, Pool
from offline_rlvr.stream.plan import Plan


def collate(groups: Sequence[GroupArrays]) -> PoolBatch:
    """Pad whole groups into one `PoolBatch`."""
    k = len(groups[0].response_token_ids)
    prompt_lengths = [len(group.prompt_token_ids) for group in groups]
    lengths = torch.tensor([[len(ids) for ids in group.response_token_ids] for group in groups])
    prompts = torch.zeros(len(groups), max(prompt_lengths), dtype=torch.long)
    tokens = torch.zeros(len(groups), k, int(lengths.max()), dtype=torch.long)
    logprobs = torch.zeros(tokens.shape, dtype=torch.float32)
    for g, group in enumerate(groups):
        prompts[g, : prompt_lengths[g]] = torch.from_numpy(group.prompt_token_ids.astype(np.int64))
        for i, (ids, values) in enumerate(
            zip(group.response_token_ids, group.behavior_logprobs, strict=True)
        ):
            tokens[g, i, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
            logprobs[g, i, : len(ids)] = torch.from_numpy(values.astype(np.float32))
    return PoolBatch(
        torch.tensor([group.group_id for group in groups]),
        prompts,
        torch.tensor(prompt_lengths),
        tokens,
        lengths,
        logprobs,
        torch.from_numpy(np.stack([group.rewards for group in groups])).float(),
    )


class UpdateData(Dataset[tuple[int, PoolBatch]]):
    """Item u - 1 is (u, the minibatch of update u); reading is random access and keeps no state."""

    def __init__(self, pool: Pool, plan: Plan):
        self.pool = pool
        self.plan = plan

    def __len__(self) -> int:
        return self.plan.updates

    def __getitem__(self, index: int) -> tuple[int, PoolBatch]:
        update = index + 1
        return update, collate(self.pool.read(self.plan.groups(update)))


class PoolData(pl.LightningDataModule):
    """Streams the updates after `applied` up to `last`, each exactly once, in plan order.

    The number of applied updates is the only cursor; the loader is sized and has no state of its
    own.

    Args:
        pool: The opened pool.
        plan: Which groups each update trains on.
        applied: Updates that the weights already hold.
        last: The last update to train, at most `plan.updates`.
    """

    def __init__(self, pool: Pool, plan: Plan, applied: int, last: int):
        super().__init__()
        self.data = UpdateData(pool, plan)
        self.remaining = range(applied, last)

    def train_dataloader(self) -> DataLoader[tuple[int, PoolBatch]]:
        """One item per update; no workers: reading is far faster than training."""
        return DataLoader(self.data, batch_size=None, sampler=self.remaining, num_workers=0)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Stays on the CPU, where micro-batches are laid out; each is moved when it is scored."""
        return batch
