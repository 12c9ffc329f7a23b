"""Anchors: the learner's own log-probs of the coming window, stored as a table of numbers.

A reference (or old policy) is not a second model: at a refresh the learner scores the minibatches
of the coming window with the kernels and micro-batches that will train on them, so right after a
refresh the drift to the anchor is exactly 0. Tables lie in `anchors/NAME-<first
update>.safetensors`; a checkpoint names the tables it needs by sha256.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from offline_rlvr.durable import make_folder, write_file, writing
from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.trainer.initial_scores import InitialScores
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.watch import Schedule

#: Scores one update's minibatch without gradient: update -> [G, K, T] log-probs.
Score = Callable[[int], Float[Tensor, "G K T"]]


class Anchor:
    """One table of log-probs, refreshed by the learner when its schedule says so.

    Args:
        name: `reference` or `old`.
        schedule: When; a table covers the updates up to the next refresh by `refresh_every`, all
            that are left without it.
        last: Last update of the run.
        folder: Where tables are kept.
        initial: Where the first window's table, the initial policy's, may lie already.
        ranks: The processes of the training, which all hold the table; the first one stores it.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        last: int,
        folder: Path,
        initial: InitialScores,
        ranks: Ranks,
    ):
        self.name = name
        self.schedule = schedule
        self.initial = initial
        self.ranks = ranks
        self.last = last
        self.folder = folder
        self._table: dict[int, Float[Tensor, "G K T"]] = {}
        self._digest: str | None = None

    def ready(self, update: int) -> bool:
        """Whether the table that is loaded is this update's.

        Raises:
            IncompatibleError: It should be, but ends before the update.
        """
        if self.schedule.due(update):
            return False
        if update not in self._table:
            raise IncompatibleError(
                f"the {self.name} table of this window (updates {min(self._table)} to "
                f"{max(self._table)}) ends before update {update}: it was made for a smaller "
                "train.max_updates, and the weights have moved since",
                hint="raise train.max_updates where a window ends, or start a new run",
            )
        return True

    def refresh(self, update: int, score: Score) -> None:
        """Score the window that starts at `update` with the present weights; store it durably."""
        window = self.schedule.window(update, self.last)

        def make() -> bytes:
            scores = {number: score(number).to("cpu", torch.float32) for number in window}
            return save({f"{number:06d}": value.contiguous() for number, value in scores.items()})

        data = self.initial.get(window, make) if update == 1 else make()
        self._table = {int(number): value for number, value in load(data).items()}
        self._digest = hashlib.sha256(data).hexdigest()
        if self.ranks.first:
            make_folder(self.folder)
            write_file(path_of(self.folder, self.name, update), data, replace=True)
        self.schedule.begin(update)

    def logprobs(self, update: int) -> Float[Tensor, "G K T"]:
        """The anchor's log-probs of this update's minibatch, float32 on the CPU."""
        return self._table[update]

    def tensors(self) -> list[Float[Tensor, "G K T"]]:
        """The table that is loaded."""
        return list(self._table.values())

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint stores: which table, its digest, and how far its schedule is (None
        before the first refresh).
        """
        if self._digest is None:
            return None
        return {**self.schedule.state(), "sha256": self._digest}

    def restore(self, state: dict[str, Any]) -> None:
        """Load the table that a checkpoint names.

        Raises:
            DataError: The table is missing or is not the one that the checkpoint saw.
        """
        table = read_table(self.folder, self.name, state)
        self._table = {int(number): value for number, value in table.items()}
        self._digest = str(state["sha256"])
        self.schedule.restore(state)

    def prune(self, keep: set[int]) -> None:
        """Remove tables whose first update is neither in `keep` nor the present one."""
        for path in self.folder.glob(f"{self.name}-{'[0-9]' * 6}.safetensors"):
            first = int(path.stem.rsplit("-", 1)[1])
            if first not in keep and first != self.schedule.first:
                with writing(path):
                    path.unlink()


def path_of(folder: Path, name: str, first: int) -> Path:
    """Where the table of the window that starts at update `first` lies."""
    return folder / f"{name}-{first:06d}.safetensors"


def read_table(folder: Path, name: str, state: dict[str, Any]) -> dict[str, Tensor]:
    """The table that a checkpoint names, by update.

    Raises:
        DataError: It is missing, or not the one that the checkpoint was written with.
    """
    path = path_of(folder, name, int(state["first"]))
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != state["sha256"]:
            raise DataError(f"{path} is not the {name} table that the checkpoint was written with")
        return load(data)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the {name} table {path} cannot be read: {error}") from error
