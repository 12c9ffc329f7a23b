"""The parent side: a few keeper threads, each owning one worker process at a time.

Workers are fresh interpreters (not forks, not `multiprocessing`), so the caller's `__main__` is
never
imported again and neither threads nor CUDA in the caller matter. A worker has its own session,
pipe pair
and scratch directory: nothing is shared that a dying worker could leave locked.
"""

import atexit
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offline_rlvr.errors import ConfigError, OfflineRlvrError, ResourceError
from offline_rlvr.verifier.sandbox.process import StartFailed, WorkerProcess

log = logging.getLogger(__name__)

#: A worker that cannot be started this often in a row ends the work with an error.
START_ATTEMPTS = 3
#: Failures that end a worker, see `Outcome`.
LOST_WORKER = ("timeout", "memory", "crash")


@dataclass(frozen=True)
class Limits:
    """See `SandboxSettings` for the meaning and units of each field."""

    workers: int
    timeout_s: float
    memory_gib: float
    max_tasks: int
    start_timeout_s: float


@dataclass(frozen=True)
class Outcome:
    """What became of one task: `value`, or a `failure` (timeout memory crash error) and detail."""

    value: Any = None
    failure: str | None = None
    detail: str = ""


class _Batch:
    """The tasks of one `run` call and what became of them."""

    def __init__(self, tasks: Sequence[Sequence[Any]]):
        self.tasks = tasks
        self.outcomes: list[Outcome | None] = [None] * len(tasks)
        self.left = len(tasks)
        self.error: OfflineRlvrError | None = None
        self.lock = threading.Lock()
        self.done = threading.Event()

    def finish(self, index: int, outcome: Outcome) -> None:
        with self.lock:
            self.outcomes[index] = outcome
            self.left -= 1
            if self.left == 0:
                self.done.set()

    def abort(self, error: OfflineRlvrError) -> None:
        with self.lock:
            self.error = self.error or error
            self.done.set()


class Sandbox:
    """Runs tasks in killable workers.

    Args:
        target: `module:factory`, imported in the workers only.
        settings: JSON-able arguments of the factory.
        limits: Process count, times and memory.
    """

    def __init__(self, target: str, settings: dict[str, Any], limits: Limits):
        self.limits = limits
        self._init = {
            "target": target,
            "settings": settings,
            "memory_gib": limits.memory_gib,
            "timeout_s": limits.timeout_s,
        }
        self._queue: queue.SimpleQueue[tuple[_Batch, int] | None] = queue.SimpleQueue()
        self._keepers: list[_Keeper] = []
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def start(self) -> None:
        """Start the workers and wait until the first one is ready.

        Raises:
            ResourceError: They do not start. ConfigError: the task function cannot be used.
        """
        with self._lock:
            if self._keepers:
                return
            self._queue = queue.SimpleQueue()
            self._keepers = [
                _Keeper(self._init, self.limits, self._queue) for _ in range(self.limits.workers)
            ]
            for keeper in self._keepers:
                keeper.start()
            _open.add(self)
        first = self._keepers[0]
        first.settled.wait()
        if first.error is not None:
            self.close()
            raise first.error

    def run(self, tasks: Sequence[Sequence[Any]]) -> list[Outcome]:
        """Run all tasks; the outcomes come in the same order. Raises like `start`.

        A task that lost its worker or ran out of time is run once more after all others: the
        machine may have been busy. One that raised an exception would raise it again.
        """
        outcomes = self._run_once(tasks)
        again = [i for i, outcome in enumerate(outcomes) if outcome.failure in LOST_WORKER]
        for i, outcome in zip(again, self._run_once([tasks[i] for i in again]), strict=True):
            outcomes[i] = outcome
        for outcome in outcomes:
            self._say(outcome)
        return outcomes

    def _run_once(self, tasks: Sequence[Sequence[Any]]) -> list[Outcome]:
        if not tasks:
            return []
        self.start()
        batch = _Batch(tasks)
        for index in range(len(tasks)):
            self._queue.put((batch, index))
        while not batch.done.wait(timeout=0.5):
            dead = [k.error for k in self._keepers if not k.is_alive()]
            if len(dead) == len(self._keepers):
                batch.abort(
                    dead[0] if dead and dead[0] else ResourceError("The verifier was closed.")
                )
        if batch.error is not None:
            raise batch.error
        return [outcome for outcome in batch.outcomes if outcome is not None]

    def worker_pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        return [k.worker.pid for k in list(self._keepers) if k.worker is not None]

    def close(self) -> None:
        """Kill the workers, remove their scratch directories. Unfinished `run` calls raise."""
        with self._lock:
            keepers, self._keepers = self._keepers, []
            for keeper in keepers:
                keeper.stop()
            for _ in keepers:
                self._queue.put(None)
            for keeper in keepers:
                keeper.join()
            with contextlib.suppress(queue.Empty):
                while True:
                    item = self._queue.get_nowait()
                    if item is not None:
                        item[0].abort(
                            ResourceError("The verifier was closed while it was scoring.")
                        )
            _open.discard(self)

    def _say(self, outcome: Outcome) -> None:
        """Log each different failure once; the count of each status is in the verdicts."""
        if outcome.failure is not None:
            text = f"{outcome.failure}: {outcome.detail}"
            if text not in self._said and len(self._said) < 20:
                self._said.add(text)
                log.warning("a response could not be scored (%s)", text)


class _Keeper(threading.Thread):
    """One slot: owns a worker process, feeds it, kills and replaces it.

    The thread lives as long as the slot because the kernel ties a worker's life to the thread that
    started it.
    """

    def __init__(self, init: dict[str, Any], limits: Limits, tasks: "queue.SimpleQueue"):
        super().__init__(name="verifier-keeper", daemon=True)
        self.init = init
        self.limits = limits
        self.tasks = tasks
        self.worker: WorkerProcess | None = None
        self.error: OfflineRlvrError | None = None
        self.settled = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            self._serve()
        except OfflineRlvrError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - reported to the caller, who would else wait for ever
            self.error = OfflineRlvrError(f"verifier keeper: {type(error).__name__}: {error}")
        finally:
            self._discard()
            self.settled.set()

    def _serve(self) -> None:
        self._ensure_worker()
        self.settled.set()
        while (item := self.tasks.get()) is not None and not self._stopping.is_set():
            batch, index = item
            if batch.done.is_set():
                continue
            try:
                worker = self._ensure_worker()
            except OfflineRlvrError as error:
                batch.abort(error)
                raise
            failure, reply = worker.ask(batch.tasks[index], self.limits.timeout_s)
            if self._stopping.is_set():
                batch.abort(ResourceError("The verifier was closed while it was scoring."))
                return
            if failure is not None:
                self._discard()
                batch.finish(index, Outcome(failure=failure, detail=reply))
            elif "failure" in reply:
                batch.finish(index, Outcome(failure=reply["failure"], detail=reply["detail"]))
                if reply["failure"] == "memory":
                    self._discard()  # its heap is fragmented and large
            else:
                batch.finish(index, Outcome(value=reply.get("value")))
            spent = failure is None and "spent" in reply
            if self.worker is not None and (spent or self.worker.tasks >= self.limits.max_tasks):
                self._discard()

    def _ensure_worker(self) -> WorkerProcess:
        if self.worker is not None:
            return self.worker
        reason = ""
        for _ in range(START_ATTEMPTS):
            try:
                self.worker = WorkerProcess(self.init, self.limits.start_timeout_s, self._stopping)
                return self.worker
            except StartFailed as error:
                if error.config:
                    raise ConfigError(str(error)) from error
                reason = str(error)
            if self._stopping.is_set():
                break
        raise ResourceError(
            f"A verifier worker does not start: {reason}",
            hint="if the machine is slow, raise verifier.start_timeout_s",
        )

    def _discard(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()

    def stop(self) -> None:
        """Ask the thread to end; its worker is killed at once, a running task cannot delay it."""
        self._stopping.set()
        worker = self.worker
        if worker is not None:
            worker.interrupt()


_open: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_open):
        sandbox.close()


def _forget_in_child() -> None:
    """A forked copy of this process owns no keepers: it must neither use nor close them."""
    for sandbox in list(_open):
        sandbox._keepers = []
        sandbox._lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget_in_child)
