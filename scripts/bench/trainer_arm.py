"""An arm: the package's own training, through `trainer.run.train`, paced by a Lightning logger.

python trainer_arm.py WORK_FOLDER [--kl-coef 0.01] [--dump FILE] [--phases]
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from floor import flops, gemm_rate
from lightning.pytorch.loggers import Logger
from pace import Pace
from safetensors.torch import save_file
from workload import config_of, opened

from offline_rlvr.batch import PoolBatch
from offline_rlvr.trainer.run import train


class PacedLogger(Logger):
    """Called when an update is applied and written down: reports it and waits for the next.

    Args:
        pace: Tells when.
        dump: Where log-probs and gradient of the first update go; None: nowhere.
        phases: Report the seconds of every phase, too.
    """

    name, version = "pace", 0

    def __init__(self, pace: Pace, dump: Path | None, phases: bool):
        super().__init__()
        self.pace = pace
        self.dump = dump
        self.phases = phases
        self.module: Any = None

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Before the first update: the module with its untouched policy."""
        self.module = model
        model.phases.on = self.phases
        if self.dump:
            scores = model.score_update(1)
            _, batch = model.data[0]
            self.dump.with_suffix(".json").write_text(json.dumps(_rows(batch, scores)))

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """After an update."""
        policy = self.module.policy
        if policy.device.type == "cuda":
            torch.cuda.synchronize()
        update = self.pace.stop()
        if self.dump:
            grads = {n: p.grad for n, p in policy.causal_lm.named_parameters()}
            save_file({n: g.float().contiguous() for n, g in grads.items()}, self.dump)
        facts: dict[str, Any] = {"threads": torch.get_num_threads()}
        if policy.device.type == "cuda":
            facts["cuda"] = torch.cuda.max_memory_allocated()
        _, batch = self.module.data[step - 1]
        dtype = torch.bfloat16 if "bf16" in self.module.trainer.precision else torch.float32
        facts["tokens"] = batch.totals.tokens
        facts["floor"] = flops(policy.causal_lm, batch) / gemm_rate(policy.causal_lm, batch, dtype)
        usage = self.module.phases.usage
        facts["phases"] = {name: used.seconds for name, used in usage.items()}
        self.pace.wait(update, **facts)
        usage.clear()

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Nothing to log."""


def _rows(batch: PoolBatch, scores: torch.Tensor) -> list[Any]:
    """[token ids, log-probs] of every response."""
    lengths = batch.response_lengths.tolist()
    return [
        [batch.response_token_ids[g, k, :n].tolist(), scores[g, k, :n].tolist()]
        for g, row in enumerate(lengths)
        for k, n in enumerate(row)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kl-coef", type=float, default=0.0)
    parser.add_argument("--dump", type=Path)
    parser.add_argument("--phases", action="store_true")
    asked = parser.parse_args()
    pace = Pace()
    work, updates = opened(asked.folder)
    config = config_of(asked.folder, work, updates, asked.kl_coef)
    if asked.dump:  # gradients as they are, in full precision
        exact = config.train.model_copy(update={"precision": "32-true", "grad_clip": None})
        config = config.model_copy(update={"train": exact})
    with tempfile.TemporaryDirectory(dir=asked.folder) as run:
        logger = PacedLogger(pace, asked.dump, asked.phases)
        train(config, asked.folder / "pool", Path(run) / "run", loggers=[logger])


if __name__ == "__main__":
    main()
