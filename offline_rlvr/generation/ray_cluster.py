"""What the `ray` back-end asks of Ray: a cluster with room, actors that sample, their errors."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offline_rlvr import generation
from offline_rlvr.errors import OfflineRlvrError, ResourceError
from offline_rlvr.generation import Answer, Pending

# Read by Ray when it is imported or started.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a library that calls home is nobody's wish
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # an announcement of a change
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the first of two equal errors is enough

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayError, RayTaskError
except ImportError as missing:
    raise ResourceError(
        f"the generation back-end 'ray' needs the package ray: {missing}",
        hint='pip install "offline-rlvr[ray]"',
    ) from missing

LOOK_AT = (
    "`ray status` shows nodes and workers, the folder `logs` of the Ray session (/tmp/ray/"
    "session_latest on its node) their last words; a worker that was killed for memory needs a "
    "smaller batch or fewer neighbors. Type the same command again to continue"
)


class Sampler:
    """The actor: one back-end, and the slices that are under way in it."""

    def __init__(self):
        self._pending: dict[int, Pending] = {}

    def load(self, name: str, params: dict[str, Any]) -> None:
        """Load the back-end; a constructor's error would reach the caller as text only."""
        self._generator = generation.load(name, **params)

    def submit(
        self, number: int, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> int:
        """Begin slice `number`; returns the number."""
        self._pending[number] = self._generator.submit(prompts, seeds)
        return number

    def collect(self, number: int) -> list[Answer]:
        """The responses of a slice that was submitted."""
        return self._pending.pop(number)()


class LostError(Exception):
    """A worker's process, node or engine is gone; the work can be done again elsewhere."""


class Worker:
    """The driver's end of one actor."""

    def __init__(self, actor: Any, loaded: Any):
        self._actor, self._loaded = actor, loaded

    def wait(self, timeout_s: float) -> None:
        """Until its back-end is loaded.

        Raises:
            OfflineRlvrError: What loading raised.
            ResourceError: It was not placed or not ready in time, or its process ended.
        """
        try:
            ray.get(self._loaded, timeout=timeout_s)
        except GetTimeoutError:
            raise ResourceError(
                f"a sampling worker was not ready within {timeout_s:g} s",
                hint="other Ray jobs may hold what it needs, see `ray status`; "
                "raise generation.start_timeout_s where a model loads longer",
            ) from None
        except RayTaskError as error:
            raise _original(error) from error
        except RayError as error:
            raise ResourceError(
                f"a sampling worker was lost while it loaded the model: {_first_line(error)}",
                hint=LOOK_AT,
            ) from error

    def start(
        self, number: int, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> Any:
        """Begin slice `number`; a handle for `collect`."""
        # Where `submit` fails, Ray fails `collect`, which takes its result, with the same error.
        return self._actor.collect.remote(self._actor.submit.remote(number, prompts, seeds))

    def collect(self, handle: Any) -> list[Answer]:
        """Wait for the responses of a slice.

        Raises:
            LostError: The worker or its engine is gone.
            Exception: What the back-end raised.
        """
        try:
            return ray.get(handle)
        except RayTaskError as error:
            ours = _original(error)
            if isinstance(ours, ResourceError):
                raise LostError(ours.message) from error
            raise ours from error
        except RayError as error:
            raise LostError(_first_line(error)) from error

    def end(self) -> None:
        """End its process, where there still is one."""
        with contextlib.suppress(RayError):
            ray.kill(self._actor)


@dataclass(frozen=True)
class Staff:
    """How a sampling worker is made.

    Attributes:
        backend: Name of the back-end that it loads.
        params: Its arguments.
        gpus: GPUs of a worker, whole or a share of one.
        cpus: CPU cores of a worker.
    """

    backend: str
    params: Mapping[str, Any]
    gpus: float
    cpus: float

    def hire(self) -> Worker:
        """A new worker that begins to load its back-end."""
        made: Any = ray.remote(Sampler)
        actor = made.options(num_gpus=self.gpus, num_cpus=self.cpus, max_restarts=0).remote()
        return Worker(actor, actor.load.remote(self.backend, dict(self.params)))

    def check_room(self, count: int) -> None:
        """Refuse workers for which the cluster's nodes have no place, even when they are idle.

        Raises:
            ResourceError: Says what the nodes have.
        """
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        wanted = {key: n for key, n in {"GPU": self.gpus, "CPU": self.cpus}.items() if n > 0}
        fits = [
            # Shares such as 0.1 of a GPU are not exact numbers.
            min((int(node.get(key, 0) / n + 1e-9) for key, n in wanted.items()), default=count)
            for node in nodes
        ]
        if sum(fits) < count:
            have = "; ".join(f"{n.get('GPU', 0):g} GPUs, {n.get('CPU', 0):g} CPUs" for n in nodes)
            raise ResourceError(
                f"{count} sampling workers of {self.gpus:g} GPUs and {self.cpus:g} CPUs were asked "
                f"for, and the nodes of this Ray have places for {sum(fits)} ({have})",
                hint="lower generation.workers, gpus_per_worker or cpus_per_worker, or add nodes: "
                "`ray start --address HEAD`",
            )


def join(address: str | None) -> bool:
    """Join a cluster or start one here; True when it was started here and is ours to end.

    Raises:
        ResourceError: There is no cluster at the address, or none can be started.
    """
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    ours = address == "local"
    with _signals_kept():
        try:
            ray.init(
                address,
                include_dashboard=False if ours else None,
                logging_level="ERROR",  # pyright: ignore[reportArgumentType]
                log_to_driver=False,
            )
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise ResourceError(
                f"Ray at {address!r} cannot be used: {_first_line(error)}",
                hint="start a cluster with `ray start --head`, or leave generation.address out",
            ) from error
    return ours


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM, by which a command stops at a safe point."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, found)


def leave() -> None:
    """End this process's Ray."""
    ray.shutdown()


def _original(error: RayTaskError) -> Exception:
    """An error of ours as it was raised in the worker; others keep Ray's traceback of them."""
    return error.cause if isinstance(error.cause, OfflineRlvrError) else error


def _first_line(error: Exception) -> str:
    """The gist of one of Ray's long messages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
