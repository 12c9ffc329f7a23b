"""Crashes of a training: `python training.py MODE FOLDER [STEP [FIRST]]`.

    kill           SIGKILL before the n-th call of a training of every weight
    image          what a power cut before it would leave of a training of an adapter

Five updates with a checkpoint every two and at the last, one of them kept, and an anchor refreshed
every two: so a crash meets saves, removals, refreshes and response files, with and without work
that no checkpoint holds. Run by `tests/faults/test_train_faults.py`.
"""

import json
import os
import warnings
from pathlib import Path

import torch
from harness import Acknowledge, Scenario, contents, every_image, every_kill, run
from lightning.pytorch.loggers import CSVLogger

from offline_rlvr.config import load_config
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.status import RunStatus
from offline_rlvr.trainer.verify import verify_run

POOL = Path(__file__).parents[3] / "pools/tiny"
UPDATES, CHECKPOINT_EVERY = 5, 2
JOB = f"""
problems: {{name: arithmetic, count: 200, seed: 0}}
pool: {{group_size: 8, probe_groups: 2}}
sampling: {{max_new_tokens: 24}}
objective: {{name: ggpo, beta: 1.0}}
reference: {{refresh_every: 2}}
train:
  groups_per_update: 1
  max_updates: {UPDATES}
  learning_rate: 1e-4
  checkpoint_every: {CHECKPOINT_EVERY}
  keep_checkpoints: 1
"""
ADAPTER = ("model.lora", "{rank: 1, target_modules: [q_proj]}")

# Sums over threads round differently, and a forked child has none of its parent's threads.
torch.set_num_threads(1)
warnings.filterwarnings("ignore", message=".*experiment logs directory.*")


class Told(CSVLogger):
    """Acknowledges each update that the trainer tells of, and writes nothing."""

    def __init__(self, root: Path, acknowledge: Acknowledge):
        super().__init__(root)
        self.acknowledge = acknowledge

    def log_metrics(self, metrics: dict, step: int | None = None) -> None:
        self.acknowledge(step)

    def save(self) -> None:
        pass


def scenario(*overrides: tuple[str, str]) -> Scenario:
    def work(root: Path, acknowledge: Acknowledge) -> None:
        os.environ["OFFLINE_RLVR_CACHE"] = str(root / "cache")
        (root / "job.yaml").write_text(JOB)
        config = load_config(root / "job.yaml", overrides)
        train(config, POOL, root / "run", loggers=[Told(root, acknowledge)])
        verify_run(root / "run")

    return Scenario(work, check, state)


def check(root: Path, acknowledged: int) -> None:
    """What was acknowledged is there, every checkpoint is whole, and a reader meets no error."""
    folder = root / "run"
    if not (folder / "run.json").exists():
        assert acknowledged == 0
        return
    RunStatus.of(folder)
    updates = [row["update"] for row in read_rows(folder / "ledger.jsonl")]
    assert updates == list(range(1, len(updates) + 1))
    found = sorted((folder / "checkpoints").glob("update-??????"))
    for path in found:
        checkpoints.verify(path)
    saved = max((checkpoints.read_state(path)["applied"] for path in found), default=0)
    assert saved >= (acknowledged - 1) // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    assert len(updates) >= saved


def state(root: Path) -> dict[str, bytes]:
    """Every file of the run that is not about when, or how often, it was started."""
    found = contents(root / "run")
    facts = json.loads(found.pop("run.json"))
    del facts["created"], facts["checksum"], facts["pool"]["path"]
    found["run.json"] = json.dumps(facts).encode()
    for name in ("ledger.jsonl", "metrics.jsonl"):
        rows = [json.loads(line) for line in found[name].splitlines()]
        kept = [
            {k: v for k, v in row.items() if k not in ("attempt", "time/update_s")} for row in rows
        ]
        found[name] = json.dumps(kept).encode()
    found.pop("ledger.discarded.jsonl", None)
    return {name: data for name, data in found.items() if not name.startswith(".lock")}


if __name__ == "__main__":
    run(
        {
            "kill": lambda *args: every_kill(scenario(), *args),
            "image": lambda *args: every_image(scenario(ADAPTER), *args),
        }
    )
