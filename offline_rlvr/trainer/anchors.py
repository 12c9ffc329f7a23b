"""Anchors: the learner's own log-probs of the coming window, stored as a table of numbers.

A reference (or old policy) is not a second model: at a refresh the learner scores the minibatches
of the next window with the kernels and micro-batches that will train on them, so right after a
refresh the drift to the anchor is exactly 0. Tables lie in `anchors/NAME-<first
update>.safetensors`; a checkpoint names the tables it needs by sha256.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from offline_rlvr.durable import make_folder, write_file, writing
from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.trainer.initial_scores import InitialScores
from offline_rlvr.trainer.ranks import Ranks

#: Scores one update's minibatch without gradient: update -> [G, K, T] log-probs.
Score = Callable[[int], Float[Tensor, "G K T"]]


class Anchor:
    """One table of log-probs, refreshed by the learner every `refresh_every` updates.

    Args:
        name: `reference` or `old`.
        refresh_every: Window length in updates; None: one window over the whole run (a fixed
            anchor).
        last: Last update of the run.
        folder: Where tables are kept.
        initial: Where the first window's table, the initial policy's, may lie already.
        ranks: The processes of the training, which all hold the table; the first one stores it.
    """

    def __init__(
        self,
        name: str,
        refresh_every: int | None,
        last: int,
        folder: Path,
        initial: InitialScores,
        ranks: Ranks,
    ):
        self.name = name
        self.initial = initial
        self.ranks = ranks
        self.refresh_every = refresh_every or last
        self.last = last
        self.folder = folder
        self._table: dict[int, Float[Tensor, "G K T"]] = {}
        self._digest: str | None = None
        self.first: int | None = None

    def window(self, update: int) -> range:
        """Updates that share the anchor of `update`."""
        return windows_of(self.refresh_every, self.last)[(update - 1) // self.refresh_every]

    def ready(self, update: int) -> bool:
        """Whether the table of this update's window is loaded."""
        return self.first == self.window(update).start and update in self._table

    def refresh(self, update: int, score: Score) -> None:
        """Score the window that starts at `update` with the present weights; store it durably."""
        window = self.window(update)
        if update != window.start:
            raise IncompatibleError(
                f"the {self.name} table of this window (updates {window.start} to "
                f"{window.stop - 1}) ends before update {update}: it was made for a smaller "
                "train.max_updates, and the weights have moved since",
                hint="raise train.max_updates where a window ends, or start a new run",
            )

        def make() -> bytes:
            scores = {number: score(number).to("cpu", torch.float32) for number in window}
            return save({f"{number:06d}": value.contiguous() for number, value in scores.items()})

        data = self.initial.get(window, make) if window.start == 1 else make()
        self._table = {int(number): value for number, value in load(data).items()}
        self.first = window.start
        self._digest = hashlib.sha256(data).hexdigest()
        if self.ranks.first:
            make_folder(self.folder)
            write_file(self._path(window.start), data, replace=True)

    def logprobs(self, update: int) -> Float[Tensor, "G K T"]:
        """The anchor's log-probs of this update's minibatch, float32 on the CPU."""
        return self._table[update]

    def tensors(self) -> list[Float[Tensor, "G K T"]]:
        """The table that is loaded."""
        return list(self._table.values())

    def state(self) -> dict[str, str | int] | None:
        """What a checkpoint stores: which table, and its digest (None before the first refresh)."""
        if self.first is None or self._digest is None:
            return None
        return {"first": self.first, "sha256": self._digest}

    def restore(self, state: dict[str, str | int]) -> None:
        """Load the table that a checkpoint names.

        Raises:
            DataError: The table is missing or is not the one that the checkpoint saw.
        """
        table = read_table(self.folder, self.name, state)
        self._table = {int(number): value for number, value in table.items()}
        self._digest = str(state["sha256"])
        self.first = int(state["first"])

    def prune(self, keep: set[int]) -> None:
        """Remove tables whose first update is neither in `keep` nor the present one."""
        for path in self.folder.glob(f"{self.name}-{'[0-9]' * 6}.safetensors"):
            first = int(path.stem.rsplit("-", 1)[1])
            if first not in keep and first != self.first:
                with writing(path):
                    path.unlink()

    def _path(self, first: int) -> Path:
        return path_of(self.folder, self.name, first)


def windows_of(refresh_every: int | None, last: int) -> list[range]:
    """The updates that share a table, window by window; None: one window over the whole run."""
    length = refresh_every or last
    return [range(first, min(first + length, last + 1)) for first in range(1, last + 1, length)]


def path_of(folder: Path, name: str, first: int) -> Path:
    """Where the table of the window that starts at update `first` lies."""
    return folder / f"{name}-{first:06d}.safetensors"


def read_table(folder: Path, name: str, state: dict[str, str | int]) -> dict[str, Tensor]:
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
