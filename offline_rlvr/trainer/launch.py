"""Starts a process for every further device, watches them, and ends with them.

The others are started by this file, not by typing the command once more: they need no command line
(a notebook has none), and join a run whose folder is checked and locked. They print nothing. When
the command ends, however, their standard input closes and they end, too; when one of them dies, the
command ends with its exit code and its last words.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from offline_rlvr.config import Config
from offline_rlvr.errors import OfflineRlvrError, ResourceError
from offline_rlvr.trainer.ranks import Ranks, join

HOST = "127.0.0.1"
#: Time for a process to see for itself what another one has died of.
GRACE_S = 20.0


@contextmanager
def launch(
    ranks: Ranks, config: Config, pool: Path, run: Path, newest: Path | None
) -> Iterator[None]:
    """All processes of a training, met, for as long as the block lasts.

    Args:
        ranks: This process, the first of `ranks.size`.
        config: The job.
        pool: The pool's folder.
        run: The run's folder, held by this process.
        newest: The checkpoint to start from.

    Raises:
        ResourceError: Another process was killed.
        OfflineRlvrError: Another process failed by itself; has its exit code.
    """
    if ranks.size == 1:
        yield
        return
    device = ranks.device(config.model.device)
    store = TCPStore(HOST, 0, ranks.size, is_master=True, wait_for_workers=False)
    places = {"run": str(run), "pool": str(pool), "newest": newest and str(newest)}
    job = {"config": config.model_dump(mode="json"), **places}
    followers = Followers(ranks, store.port, job)
    try:
        with meeting(ranks, store, device):
            try:
                yield
                followers.wait()
            except RuntimeError as error:  # also what gloo says when a process has gone
                failure = followers.failure(wait_s=2.0)
                if failure is None:
                    raise
                raise failure from error
            finally:
                followers.end()  # before this one leaves, which they would die of
    finally:
        followers.end()


@contextmanager
def meeting(ranks: Ranks, store: Store, device: torch.device) -> Iterator[None]:
    """The process group, and a fair share of the cores, for as long as the block lasts."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(max(1, threads // ranks.size))
    try:
        join(ranks, store, device)
        yield
    finally:
        torch.set_num_threads(threads)
        if dist.is_initialized():
            dist.destroy_process_group()


class Followers:
    """The processes of all ranks but the first."""

    def __init__(self, ranks: Ranks, port: int, job: dict[str, Any]):
        self._said: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        for rank in range(1, ranks.size):
            facts = {"rank": rank, "size": ranks.size, "sharded": ranks.sharded, "port": port}
            said = tempfile.TemporaryFile()  # noqa: SIM115, closed in `end`
            self._said.append(said)
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "offline_rlvr.trainer.follow", json.dumps(facts | job)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,  # Ctrl-C is for the first, which tells the others
                )
            )
        self._watcher = threading.Thread(target=self._watch, daemon=True, name="followers")
        self._watcher.start()

    def failure(self, wait_s: float = 0.0) -> OfflineRlvrError | None:
        """What a process has died of; None when none has."""
        until = time.monotonic() + wait_s
        while True:
            for rank, process in enumerate(self._processes, start=1):
                if process.poll():
                    return self._describe(rank, process.returncode)
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def wait(self) -> None:
        """Let them finish what the first has finished, for a while."""
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)

    def end(self) -> None:
        """End those that still run."""
        self._ending.set()
        self._watcher.join()
        for process, said in zip(self._processes, self._said, strict=True):
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
            said.close()

    def _watch(self) -> None:
        """End the command when it waits, in a GPU's collective, for a process that has died."""
        while not self._ending.wait(0.5):
            failure = self.failure()
            if failure is None:
                continue
            if not self._ending.wait(GRACE_S):
                print(f"error[{failure.code}]: {failure}", file=sys.stderr, flush=True)
                for process in self._processes:
                    process.kill()
                os._exit(failure.exit_code)

    def _describe(self, rank: int, code: int) -> OfflineRlvrError:
        if code < 0:
            return ResourceError(
                f"the process of device {rank} was ended by {signal.Signals(-code).name}",
                hint="see whether the memory was full; the same command continues from the last "
                "checkpoint",
            )
        said = self._said[rank - 1]
        said.seek(0)
        text = said.read().decode("utf-8", "replace").strip()
        failure = OfflineRlvrError(f"the process of device {rank} failed:\n{text}")
        kinds = {kind.exit_code: kind.code for kind in OfflineRlvrError.__subclasses__()}
        failure.exit_code, failure.code = code, kinds.get(code, failure.code)
        return failure


def store_of(ranks: Ranks, port: int) -> Store:
    """In another process: the meeting point that the first one has opened."""
    return TCPStore(HOST, port, ranks.size, is_master=False)


def end_with_the_command() -> None:
    """In another process: end when the first one does, even by SIGKILL."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with the command").start()
