"""`train --profile N`: where the time and memory of N updates go, in words (`profile.md`)."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor
from torch.distributed.tensor import DTensor

from offline_rlvr.durable import write_file
from offline_rlvr.errors import ConfigError
from offline_rlvr.trainer.module import OfflineModule
from offline_rlvr.trainer.phases import MEANING, Usage

#: Updates before the first measured one: it loads kernels, and makes the optimizer's state.
WARM_UP = 1
MIB = 1 << 20
#: The rest of an update, in words.
REST = "reading groups from the pool, Lightning's loop, Python"


class UpdateProfile(pl.Callback):
    """Measures some updates after the first one of this start; the training goes on.

    Args:
        updates: How many.
        folder: Where `profile.md` and `profile.json` are written.

    Raises:
        ConfigError: Less than one update.
    """

    def __init__(self, updates: int, folder: Path):
        if updates < 1:
            raise ConfigError(f"--profile {updates}: expected a number of updates, at least 1")
        self.updates = updates
        self.folder = folder
        self._seen = 0
        self._started = 0.0
        self._tokens = 0
        self._passes = 0
        self._written = False

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Switch the measuring on after the warm-up."""
        if self._seen == WARM_UP:
            pl_module.phases.on = True
            self._started = time.perf_counter()
        if pl_module.phases.on:
            groups = batch[1]
            self._tokens += int(groups.prompt_lengths.sum() + groups.response_lengths.sum())
            self._passes += len(pl_module.accumulator.plan(groups))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the profile after the last measured update, the last of the run at the latest."""
        self._seen += 1
        measured = self._seen - WARM_UP
        if pl_module.phases.on and measured == self.updates:
            self._write(pl_module, measured)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """The run had fewer updates than were asked for."""
        if pl_module.phases.on:
            self._write(pl_module, self._seen - WARM_UP)

    def say_if_none(self) -> None:
        """Say so when the training had no update to measure."""
        if not self._written:
            print(f"no profile: {self._seen} updates were left, and the first one is warm-up")

    def _write(self, module: OfflineModule, measured: int) -> None:
        evaluating = module.phases.usage.pop("evaluation", Usage()).seconds
        seconds = (time.perf_counter() - self._started - evaluating) / measured
        module.phases.on, self._written = False, True
        facts = {
            "updates": [module.applied - measured + 1, module.applied],
            "device": str(module.phases.device),
            "seconds_per_update": seconds,
            "evaluation_seconds": evaluating,
            "tokens_per_update": self._tokens / measured,
            "micro_batches_per_update": self._passes / measured,
            "micro_batch_tokens": module.accumulator.token_budget,
            "phases": {
                name: {
                    "seconds_per_update": module.phases.usage[name].seconds / measured,
                    "peak_mib": module.phases.usage[name].peak / MIB,
                }
                for name in MEANING
                if name in module.phases.usage
            },
            "memory_mib": _held(module),
        }
        words = _words(facts)
        write_file(self.folder / "profile.json", json.dumps(facts, indent=1).encode(), replace=True)
        write_file(self.folder / "profile.md", words.encode(), replace=True)
        print(f"{words}\nwritten to {self.folder / 'profile.md'}", flush=True)


def _held(module: OfflineModule) -> dict[str, float]:
    """What stays in memory through an update, MiB."""
    parameters = list(module.policy.parameters())
    optimizer: Any = module.optimizers()
    states = [v for state in optimizer.state.values() for v in state.values()]
    held = {
        "weights": parameters,
        "gradients": [p.grad if p.grad is not None else p for p in parameters if p.requires_grad],
        "Adam's moments": [value for value in states if isinstance(value, Tensor)],
        "anchor tables": [t for a in module.anchors.values() for t in a.tensors()],
    }
    return {what: _bytes(tensors) / MIB for what, tensors in held.items()}


def _bytes(tensors: Iterable[Tensor]) -> int:
    held = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _words(facts: dict[str, Any]) -> str:
    total, (first, last) = facts["seconds_per_update"], facts["updates"]
    rows = [(n, p["seconds_per_update"], p["peak_mib"]) for n, p in facts["phases"].items()]
    rest = total - sum(seconds for _, seconds, _ in rows)
    lines = [
        "# Where the time and memory of an update go",
        "",
        f"Updates {first} to {last} on {facts['device']}: {total:.3g} s and "
        f"{facts['tokens_per_update']:,.0f} tokens (prompts once) per update, "
        f"{facts['tokens_per_update'] / total:,.0f} tokens/s; "
        f"{facts['micro_batches_per_update']:.1f} micro-batches per update, budget "
        f"{facts['micro_batch_tokens']:,} tokens.",
        "",
        "| phase | s per update | share | peak MiB | what it is |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {seconds:.4f} | {seconds / total:.1%} | {peak:,.0f} | {MEANING[name]} |"
            for name, seconds, peak in rows
        ),
        f"| rest | {rest:.4f} | {rest / total:.1%} | | {REST} |",
        "",
        _memory_words(rows, facts),
        f"Evaluations in between, not counted above: {facts['evaluation_seconds']:.3g} s.",
        "",
    ]
    return "\n".join(lines)


def _memory_words(rows: list[tuple[str, float, float]], facts: dict[str, Any]) -> str:
    name, _, peak = max(rows, key=lambda row: row[2])
    held = ", ".join(f"{what} {mib:,.1f}" for what, mib in facts["memory_mib"].items() if mib)
    of_what = (
        "allocated on the device"
        if facts["device"].startswith("cuda")
        else "resident in the process, libraries included"
    )
    return (
        f"Memory is highest in {name}: {peak:,.0f} MiB ({of_what}). Held all the time, MiB: {held}."
    )
