"""Sampling on many devices or machines: workers in a Ray cluster, each with a back-end of its own.

A submission is cut into slices. Each worker is a Ray actor that holds one ordinary back-end and
takes the next slice whenever it has room, so that fast workers do more. One process hands out the
slices and collects the responses: there is one pool and one writer, and nothing to merge.

A slice whose worker was lost is sampled again elsewhere, with the same seeds.
"""

import contextlib
import itertools
import math
import queue
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offline_rlvr import generation
from offline_rlvr.errors import ConfigError, OfflineRlvrError, ResourceError
from offline_rlvr.generation import Answer, Pending
from offline_rlvr.generation.ray_cluster import LOOK_AT, LostError, Staff, Worker, join, leave
from offline_rlvr.generation.sampling import Sampling

#: Workers that one slice may lose before it counts as the cause.
MAX_ATTEMPTS = 3
#: Slices at one worker at a time: an engine goes on with the second while the last responses of the
#: first still grow.
SLICES_AT_A_WORKER = 2
#: Seconds in which an idle thread notices `close`.
IDLE_S = 0.2
#: Seconds in which a thread notices that its worker was ended.
CLOSE_S = 10.0


@dataclass(order=True)
class _Slice:
    """Consecutive prompts of a submission; earlier ones are handed out first."""

    number: int
    prompts: Sequence[Sequence[int]] = field(compare=False)
    seeds: Sequence[Sequence[int]] = field(compare=False)
    result: Future[list[Answer]] = field(default_factory=Future, compare=False)
    attempts: int = field(default=0, compare=False)


class RayGenerator:
    """Hands slices of prompts to the workers: one thread of this process for each of them.

    Args:
        sampling: Settings of every response.
        staff: How a worker is made.
        workers: How many there are.
        slices_per_worker: A submission is cut into so many slices for each worker.
        start_timeout_s: Longest wait for a worker to be placed and to load the model, in seconds.
        started_ray: Whether `close` also ends Ray.

    Raises:
        OfflineRlvrError: What loading the back-end raises.
        ResourceError: A worker did not start in time.
    """

    def __init__(
        self,
        sampling: Sampling,
        staff: Staff,
        *,
        workers: int,
        slices_per_worker: int,
        start_timeout_s: float,
        started_ray: bool,
    ):
        self.sampling = sampling
        self._staff, self._start_timeout_s = staff, start_timeout_s
        self._slices, self._started_ray = workers * slices_per_worker, started_ray
        self._numbers = itertools.count()
        self._queue: queue.PriorityQueue[_Slice] = queue.PriorityQueue()
        self._lock = threading.Lock()
        self._failure: ResourceError | None = None
        self._threads: list[threading.Thread] = []
        # All load at the same time; only then the first is waited for.
        self._workers = {number: staff.hire() for number in range(workers)}
        try:
            for worker in self._workers.values():
                worker.wait(start_timeout_s)
        except BaseException:
            self.close()
            raise
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> Pending:
        """Queue the prompts in slices; see `Generator.submit`."""
        if len(prompts) != len(seeds):
            raise ConfigError(f"{len(prompts)} prompts but {len(seeds)} lists of seeds")
        size = max(1, math.ceil(len(prompts) / self._slices))
        slices = [
            _Slice(
                next(self._numbers),
                [list(prompt) for prompt in prompts[first : first + size]],
                [list(row) for row in seeds[first : first + size]],
            )
            for first in range(0, len(prompts), size)
        ]
        with self._lock:
            if self._failure is not None:
                raise self._failure
            for part in slices:
                self._queue.put(part)
        return lambda: [answer for part in slices for answer in part.result.result()]

    def close(self) -> None:
        """End the workers, and Ray where it was started for them; twice is fine."""
        self._fail(ResourceError("the sampling workers were closed"))
        with self._lock:
            workers, self._workers = list(self._workers.values()), {}
            started, self._started_ray = self._started_ray, False
        for worker in workers:
            worker.end()
        # A thread that still talks to Ray when Ray has ended would take the process with it.
        for thread in self._threads:
            thread.join(CLOSE_S)
        if started:
            leave()

    def _serve(self, number: int) -> None:
        """The life of one worker: take slices, wait for the oldest, be replaced when lost."""
        at_work: deque[tuple[_Slice, Any]] = deque()
        worker = self._workers[number]
        while self._failure is None or at_work:
            while len(at_work) < SLICES_AT_A_WORKER:
                try:
                    # Waits only when there is nothing to collect.
                    part = self._queue.get(block=not at_work, timeout=IDLE_S)
                except queue.Empty:
                    break
                part.attempts += 1
                at_work.append((part, worker.start(part.number, part.prompts, part.seeds)))
            if not at_work:
                continue
            part, handle = at_work[0]
            try:
                part.result.set_result(worker.collect(handle))
            except LostError as error:
                self._give_back([part for part, _ in at_work], str(error))
                at_work.clear()
                worker.end()
                replacement = self._replace(number, str(error))
                if replacement is None:
                    return
                worker = replacement
            except Exception as error:  # noqa: BLE001  (whoever waits for the slice gets it)
                part.result.set_exception(error)
                at_work.popleft()
            else:
                at_work.popleft()

    def _give_back(self, slices: Sequence[_Slice], reason: str) -> None:
        """Queue the slices of a lost worker again, unless they have lost too many."""
        for part in slices:
            if part.attempts < MAX_ATTEMPTS and self._failure is None:
                self._queue.put(part)
            else:
                part.result.set_exception(
                    self._failure
                    or ResourceError(
                        f"{len(part.prompts)} prompts lost their sampling worker {MAX_ATTEMPTS} "
                        f"times, the last time with: {reason}",
                        hint=LOOK_AT,
                    )
                )

    def _replace(self, number: int, reason: str) -> Worker | None:
        """Another worker in the place of a lost one; None when there can be none."""
        if self._failure is not None:
            return None
        _say(f"a sampling worker was lost and is replaced: {reason}")
        worker = self._workers[number] = self._staff.hire()
        try:
            worker.wait(self._start_timeout_s)
        except OfflineRlvrError as error:
            worker.end()
            with self._lock:
                self._workers.pop(number, None)
                left = len(self._workers)
            if self._failure is not None:
                return None
            _say(f"it cannot be replaced, {left} are left: {error.message}")
            if not left:
                self._fail(
                    ResourceError(f"all sampling workers are lost: {error.message}", hint=LOOK_AT)
                )
            return None
        return worker

    def _fail(self, error: ResourceError) -> None:
        """Nobody is there to sample: every slice that waits gets the error, and all later ones."""
        with self._lock:
            self._failure = self._failure or error
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait().result.set_exception(self._failure)


def load(
    name_or_path: str,
    sampling: Sampling,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    workers: int = 1,
    gpus_per_worker: float = 1,
    cpus_per_worker: float = 1,
    address: str | None = None,
    slices_per_worker: int = 4,
    start_timeout_s: float = 1800,
    backend: Mapping[str, Any] | None = None,
    adapter: str | Path | None = None,
) -> RayGenerator:
    """The generator of this back-end, by config name `ray`.

    Every node has this package and finds the model by the same name. Two slices should fill an
    engine: take about 64 * workers for `pool.chunk_groups`.

    Args:
        name_or_path, revision, dtype, adapter: The model of every worker.
        sampling: Settings of every response.
        device: `auto`, `cpu` or `cuda`: Ray gives each worker its own GPUs.
        workers: Sampling workers.
        gpus_per_worker: GPUs of each: as many as its back-end uses, 0 for the CPU, or a share.
        cpus_per_worker: CPU cores of each.
        address: `auto` or an address: join that Ray cluster. Null: the one that RAY_ADDRESS names,
            else start Ray on this machine, and end it afterwards.
        slices_per_worker: A submission is cut into so many slices for each worker.
        start_timeout_s: Longest wait for a worker to be placed and to load the model, in seconds.
        backend: The back-end of the workers: `{name: hf, ...its settings}`.

    Raises:
        ConfigError: A setting that cannot be used.
        ResourceError: Ray cannot be reached, or has no place for the workers.
    """
    name, inner = _inner(backend)
    _check({"workers": workers, "slices_per_worker": slices_per_worker}, int, 1)
    shares = {"gpus_per_worker": gpus_per_worker, "cpus_per_worker": cpus_per_worker}
    _check({**shares, "start_timeout_s": start_timeout_s}, (int, float), 0)
    model = {"name_or_path": name_or_path, "revision": revision, "dtype": dtype, "device": device}
    given = {**model, "adapter": adapter, "sampling": sampling}
    staff = Staff(name, {**inner, **given}, gpus_per_worker, cpus_per_worker)
    started = join(address)
    try:
        staff.check_room(workers)
        return RayGenerator(
            sampling,
            staff,
            workers=workers,
            slices_per_worker=slices_per_worker,
            start_timeout_s=start_timeout_s,
            started_ray=started,
        )
    except BaseException:
        if started:
            leave()
        raise


def _inner(backend: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """Name and settings of the workers' back-end."""
    settings = dict(backend or {})
    name = settings.pop("name", None)
    others = [other for other in generation.BACKENDS if other != "ray"]
    if name not in others:
        raise ConfigError(
            f"backend.name is {name!r}; allowed: {', '.join(others)}",
            hint="say what the workers sample with, e.g. backend: {name: hf}",
        )
    return name, settings


def _check(numbers: Mapping[str, Any], kind: Any, least: int) -> None:
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, kind) or not value >= least:
            raise ConfigError(f"{key} is {value!r}; it must be a number of at least {least}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
