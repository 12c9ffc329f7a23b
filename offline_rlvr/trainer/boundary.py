"""What happens between two updates: stop requests, checkpoints, evaluations, progress."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl

from offline_rlvr.progress import Progress
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.anchors import Anchor
from offline_rlvr.trainer.module import OfflineModule
from offline_rlvr.trainer.record import Recorder


class StopRequest:
    """Remembers SIGTERM and Ctrl-C until the update is finished; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Restore the handlers of both signals when the block ends."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.listen()
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Take over both signals, from Lightning too, which would exit with 0 after SIGTERM."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


class UpdateBoundary(pl.Callback):
    """Checkpoints, evaluates and stops at update boundaries only.

    Args:
        folder: The run's `checkpoints` folder.
        recorder: Flushed before every checkpoint.
        begun: Called once, after the first update, before anything is made of it.
        last: Last update of this run.
        checkpoint_every: Updates between checkpoints; there is always one at the last update.
        keep: Checkpoints kept.
        evaluate_every: Updates between evaluations; None: only at the last update.
        evaluate: Evaluates the present policy after an update, unless its result is stored already.
        best: Update of the checkpoint that is kept for its accuracy, and that; None: none is.
        stop: A pending request to stop.
        progress: Told about every update.
    """

    def __init__(
        self,
        *,
        folder: Path,
        recorder: Recorder,
        begun: Callable[[], None],
        last: int,
        checkpoint_every: int,
        keep: int,
        evaluate_every: int | None,
        evaluate: Callable[[int], None],
        best: Callable[[], tuple[int, float] | None],
        stop: StopRequest,
        progress: Progress,
    ):
        self.folder = folder
        self.recorder = recorder
        self.begun: Callable[[], None] | None = begun
        self.last = last
        self.checkpoint_every = checkpoint_every
        self.keep = keep
        self.evaluate_every = evaluate_every
        self.evaluate = evaluate
        self.best = best
        self.stop = stop
        self.progress = progress

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Evaluate the base, or make up for an evaluation that the last attempt was killed in."""
        self.stop.listen()
        self._evaluate_if_due(pl_module)
        self.progress.update(pl_module.applied)
        self.progress.restart()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After one applied update."""
        update = pl_module.applied
        if self.begun is not None:
            self.begun()
            self.begun = None
        # A signal may arrive at any line, and in one process only. One that arrives while the
        # others are asked is left for the next update.
        signals = pl_module.ranks.gather(self.stop.signal)
        agreed = next((number for number in signals if number is not None), None)
        stopping = agreed is not None
        if stopping:
            self.stop.signal = agreed
        self.progress.update(update, f"drift {pl_module.drift:.4f} nats/token")
        # An evaluation describes weights that can be loaded again, so it follows a checkpoint.
        if stopping or update % self.checkpoint_every == 0 or self._evaluation_due(pl_module):
            with pl_module.phases("checkpoint"):
                self.recorder.flush()
                trainer.save_checkpoint(checkpoints.folder_of(self.folder, update))
                if pl_module.ranks.first:
                    prune(self.folder, self.keep, self.best(), pl_module.anchors)
        if not stopping:
            self._evaluate_if_due(pl_module)
        if stopping or pl_module.stopped:
            trainer.should_stop = True

    def _evaluation_due(self, module: OfflineModule) -> bool:
        update, every = module.applied, self.evaluate_every
        regular = every is not None and update % every == 0
        return update in (0, self.last) or regular or module.stopped

    def _evaluate_if_due(self, module: OfflineModule) -> None:
        if self._evaluation_due(module):
            with module.phases("evaluation"):
                self.evaluate(module.applied)
            self.recorder.keep_best(self.best())


def prune(
    folder: Path, keep: int, best: tuple[int, float] | None, anchors: Mapping[str, Anchor]
) -> None:
    """Remove all but the newest checkpoints and the best, and anchor tables that they do not name.

    Args:
        folder: The run's `checkpoints` folder.
        keep: How many of the newest stay.
        best: Update of one more that stays, and its accuracy.
        anchors: By name.
    """
    kept = checkpoints.prune(folder, keep, best[0] if best else None)
    states = [checkpoints.read_state(checkpoint)["anchors"] for checkpoint in kept]
    for name, anchor in anchors.items():
        anchor.prune({state[name]["first"] for state in states if state.get(name)})
