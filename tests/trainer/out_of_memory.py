"""Trains in ever less memory until an update had to be done again; run by test_memory.py.

Arguments: the config, the pool, a folder for the runs. Prints the run that had to.
"""

import resource
import sys
from pathlib import Path

import psutil
import torch

from offline_rlvr.config import load_config
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train

MIB = 1 << 20


def main(config: str, pool: str, folder: str) -> None:
    torch.set_num_threads(1)
    job = load_config(
        config,
        [
            ("evaluation.problems", "null"),
            ("train.groups_per_update", "12"),
            ("train.max_updates", "2"),
            ("train.micro_batch_tokens", "2048"),
            ("train.learning_rate", "1e-3"),
            ("train.checkpoint_every", "1"),
        ],
    )
    train(job, Path(pool), Path(folder) / "plenty")  # loads every library
    for room in (64, 32, 28, 24, 22, 20, 18, 16, 14, 12, 10, 8):
        run = Path(folder) / f"{room} MiB"
        used = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (used + room * MIB, resource.RLIM_INFINITY))
        try:
            train(job, Path(pool), run)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        budgets = [row["train/micro_batch_tokens"] for row in read_rows(run / "metrics.jsonl")]
        if min(budgets) < 2048:
            print(f"found: {run}")
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
