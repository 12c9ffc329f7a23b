"""One worker process: started clean, asked one task at a time, killed with all it started."""

import contextlib
import glob
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from offline_rlvr.verifier.sandbox import wire

#: Not `-m`: run as `__main__` the module would exist twice, and so would its exception classes.
PROGRAM = "from offline_rlvr.verifier.sandbox.worker import main; main()"
#: Environment variables a worker may see; everything else (tokens, keys) does not exist in it.
ALLOWED_ENV = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHONHOME",
)
#: One thread each: the workers themselves are the parallelism.
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
POLL_S = 0.1


class StartFailed(Exception):
    """The worker did not get ready; `config` tells that the user's settings are the reason."""

    def __init__(self, message: str, *, config: bool = False):
        super().__init__(message)
        self.config = config


class WorkerProcess:
    """A running worker.

    Args:
        init: First message to the worker.
        start_timeout_s: Seconds until it must be ready.
        stopping: Set by the supervisor when all work is to end.
    """

    def __init__(self, init: dict[str, Any], start_timeout_s: float, stopping: threading.Event):
        self.tasks = 0
        self._stopping = stopping
        self._decoder = wire.Decoder()
        self._scratch = tempfile.mkdtemp(prefix="offline-rlvr-verifier-")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd=self._scratch,
                env=clean_environment(self._scratch),
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise StartFailed(f"{sys.executable}: {error}") from error
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        failure, reply = self._exchange(init, start_timeout_s)
        if failure is None and "ready" in reply:
            return
        self.kill()
        if failure is not None:
            raise StartFailed(f"{failure} before it was ready ({reply})")
        if "config" in reply:
            raise StartFailed(reply["config"].removeprefix("TargetError: "), config=True)
        raise StartFailed(str(reply.get("failed", reply)))

    def ask(self, args: Sequence[Any], timeout_s: float) -> tuple[str | None, Any]:
        """Give one task. `(None, reply)`, or `("timeout" | "crash", detail)`: then kill it."""
        self.tasks += 1
        failure, reply = self._exchange({"id": self.tasks, "args": list(args)}, timeout_s)
        if failure is None and (not isinstance(reply, dict) or reply.get("id") != self.tasks):
            return "crash", "the worker broke the protocol"
        return failure, reply

    def _exchange(self, message: Any, timeout_s: float) -> tuple[str | None, Any]:
        deadline = time.monotonic() + timeout_s
        outgoing = memoryview(wire.encode(message))
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        poll.register(self._to, select.POLLOUT)
        while not self._stopping.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", f"no answer within {timeout_s:g} s"
            events = dict(poll.poll(min(left, POLL_S) * 1000))
            try:
                if self._to in events and outgoing:
                    outgoing = outgoing[os.write(self._to, outgoing) :]
                    if not outgoing:
                        poll.unregister(self._to)
                if self._from in events:
                    data = os.read(self._from, 2**16)
                    if not data:
                        return self._obituary()
                    self._decoder.feed(data)
                    reply = self._decoder.take()
                    if reply is not None:
                        return None, reply
            except (wire.WireError, OSError) as error:
                return ("crash", str(error)) if self._process.poll() is None else self._obituary()
            # A process that the task started may hold the pipe open after the worker
            # itself is gone.
            if not events and self._process.poll() is not None:
                return self._obituary()
        return "crash", "stopped"

    def _obituary(self) -> tuple[str, str]:
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "crash", "the worker closed its pipe"
        if code == -signal.SIGXCPU:
            return "timeout", "CPU time used up"
        if code < 0:
            with contextlib.suppress(ValueError):
                return "crash", f"the worker died of {signal.Signals(-code).name}"
        return "crash", f"the worker exited with code {code}"

    def interrupt(self) -> None:
        """Kill from another thread; the owner still has to call `kill`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL to the worker and to all that its tasks started, then clean up."""
        self.interrupt()
        self._process.wait()
        for pid in processes_with_home(self._scratch):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def processes_with_home(scratch: str) -> list[int]:
    """What a dead worker's tasks left in other sessions: their HOME is its scratch directory."""
    mark = b"HOME=" + os.fsencode(scratch)
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError), open(f"{folder}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(folder.removeprefix("/proc/")))
    return found


def clean_environment(scratch: str) -> dict[str, str]:
    """The worker's environment: an allow-list, a home of its own, the caller's import path."""
    env = {key: os.environ[key] for key in ALLOWED_ENV if key in os.environ}
    env.update(dict.fromkeys(ONE_THREAD, "1"))
    env.update(
        HOME=scratch,
        TMPDIR=scratch,
        PYTHONPATH=os.pathsep.join(os.path.abspath(p) for p in sys.path),
        PYTHONHASHSEED="0",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONSAFEPATH="1",
    )
    return env
