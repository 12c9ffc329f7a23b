"""Log-probs of the untouched policy, scored once per pool and model and reused by later runs.

Every run's first anchor window is scored by the policy that built the pool; for a fixed reference
that window is the whole run. The table depends on nothing else than what `facts` names, so it is
kept in the user's cache (a pool may be read-only, and holds only what a commit names):

    $OFFLINE_RLVR_CACHE, or $XDG_CACHE_HOME/offline_rlvr, or ~/.cache/offline_rlvr
        initial-scores/KEY.table      32 bytes of sha256, then a safetensors file

The folder may be deleted at any time. A damaged table is reported and scored again; one that cannot
be kept is reported. Writers make files of their own and rename them, so any number of
runs may share the folder.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from offline_rlvr.config import Config
from offline_rlvr.durable import make_folder, write_file, writing
from offline_rlvr.errors import ResourceError
from offline_rlvr.generation.pretrained import resolve_device
from offline_rlvr.generation.sampling import Sampling
from offline_rlvr.pool import Pool
from offline_rlvr.stream import Plan
from offline_rlvr.trainer.ranks import Ranks

#: Tables used longest ago are removed above this size.
MAX_BYTES = 32 << 30
#: A writer's own file that is older belongs to no living writer.
LEFT_OVER_S = 24 * 3600
DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Where tables are kept."""
    own, shared = os.environ.get("OFFLINE_RLVR_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else Path(shared or Path.home() / ".cache") / "offline_rlvr"
    return root / "initial-scores"


def scoring_facts(
    config: Config,
    pool: Pool,
    plan: Plan,
    sampling: Sampling,
    token_budgets: tuple[int, int],
    ranks: Ranks,
) -> dict[str, Any]:
    """All that the initial policy's log-probs of the plan's minibatches depend on, to the bit."""
    device = resolve_device(config.model.device)
    kernels = torch.backends.cpu.get_cpu_capability()
    return {
        "pool": pool.hash,
        "plan": plan.hash,
        "model": pool.identity["model"]["fingerprint"],
        "dtype": config.model.learner_dtype,
        "compile": config.model.compile,
        "lora": config.model.lora.model_dump() if config.model.lora else None,
        "seed": config.train.seed,
        "temperature": sampling.temperature,
        "micro_batch_tokens": token_budgets,
        "devices": ranks.size,
        "sharded": ranks.sharded,
        "precision": config.train.precision,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else kernels,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("offline-rlvr", "torch", "transformers")},
    }


class InitialScores:
    """Tables of one run's untouched policy.

    Args:
        facts: Everything that a table depends on except its updates: pool, plan, model, precision,
            micro-batches, device, versions. JSON values.
        folder: Where tables are kept.
        say: Receives a line when a table is reused, damaged or cannot be kept.
        ranks: The processes of the training; the first one reads and keeps.
    """

    def __init__(
        self,
        facts: dict[str, Any],
        folder: Path,
        say: Callable[[str], None] = print,
        ranks: Ranks | None = None,
    ):
        self.facts = facts
        self.folder = folder
        self.say = say
        self.ranks = ranks or Ranks()

    def get(self, updates: range, make: Callable[[], bytes]) -> bytes:
        """The safetensors bytes of a window that starts at update 1, from the cache or `make`.

        Args:
            updates: The window.
            make: Scores it, in all processes together.
        """
        path = self._path(updates)
        data = self.ranks.from_first(lambda: self._read(path))
        if data is None:
            data = make()
            if self.ranks.first:
                self._keep(path, data)
        return data

    def _path(self, updates: range) -> Path:
        facts = {**self.facts, "updates": [updates.start, updates.stop]}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{key[:32]}.table"

    def _read(self, path: Path) -> bytes | None:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            self.say(f"{path} is damaged and is made again")
            return None
        self.say(f"log-probs of the initial policy: reused from {path}")
        with contextlib.suppress(OSError):  # read-only: then nothing is removed either
            os.utime(path)
        return data

    def _keep(self, path: Path, data: bytes) -> None:
        own = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
        try:
            make_folder(self.folder)
            write_file(own, hashlib.sha256(data).digest() + data)
            with writing(path):
                os.replace(own, path)
                self._prune(path)
        except ResourceError as error:
            self.say(f"log-probs of the initial policy are not kept for other runs: {error}")

    def _prune(self, newest: Path) -> None:
        """Remove what was used longest ago, and what killed writers left."""
        found = []
        for entry in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another run has just removed it
                facts = entry.stat()
                found.append((facts.st_mtime, facts.st_size, entry))
        total, now = 0, time.time()
        for used, size, entry in sorted(found, reverse=True):
            total += size
            left_over = entry.suffix != ".table" and now - used > LEFT_OVER_S
            if entry != newest and (total > MAX_BYTES or left_over):
                entry.unlink(missing_ok=True)
