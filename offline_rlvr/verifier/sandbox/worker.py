"""The child side, a fresh interpreter that runs `main`; started by the supervisor only.

Reads one init message and then tasks from its standard input, answers on what was its standard
output.
Once the task function is imported the process limits itself: memory, CPU, file size, core dumps.
"""

import contextlib
import ctypes
import glob
import importlib
import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from offline_rlvr.verifier.sandbox import wire

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
OPEN_FILES = 256
#: CPU seconds granted per task beyond its wall-clock limit; matters only if the supervisor is gone.
CPU_SLACK_S = 10


def main() -> None:
    """Serve tasks until the supervisor closes the pipe."""
    die_with_parent()
    requests, replies = private_pipes()
    decoder = wire.Decoder()
    init = wire.read_message(requests, decoder)
    if init is None:
        return
    try:
        task = import_target(init["target"])(**init["settings"])
    except Exception as error:  # noqa: BLE001 - anything a user's module may raise while imported
        kind = "config" if isinstance(error, TargetError) else "failed"
        wire.write_all(replies, wire.encode({kind: f"{type(error).__name__}: {error}"[:2000]}))
        return
    limit_memory(init["memory_gib"])
    pid = os.getpid()
    adopt_orphans()
    kept = children()
    wire.write_all(replies, wire.encode({"ready": pid}))
    while (message := wire.read_message(requests, decoder)) is not None:
        limit_cpu(init["timeout_s"])
        reply = run(task, message["args"])
        if os.getpid() != pid:  # the task forked and the copy came back here
            os._exit(0)
        end_children(kept)
        if leaks_files():
            reply["spent"] = True
        wire.write_all(replies, wire.encode({"id": message["id"], **reply}))


class TargetError(Exception):
    """The task function cannot be used; the text is for the user."""


def run(task: Callable[..., Any], args: list[Any]) -> dict[str, Any]:
    """Call the task; whatever it raises becomes data."""
    try:
        return {"value": task(*args)}
    except MemoryError:
        return {"failure": "memory", "detail": "MemoryError"}
    except RecursionError:
        return {"failure": "error", "detail": "RecursionError"}
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a user's function too
        try:
            text = str(error)[:500]
        except Exception:  # noqa: BLE001 - a user's exception may fail to print
            text = ""
        return {"failure": "error", "detail": f"{type(error).__name__}: {text}"}


def die_with_parent() -> None:
    """On Linux the kernel kills this process when the supervising thread ends, however it ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between the two calls
            os._exit(0)


def adopt_orphans() -> None:
    """On Linux what a task starts stays below this process, even when its own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Process ids right below this one; empty where the system does not list them."""
    found: set[int] = set()
    for thread in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(thread) as file:
            found.update(map(int, file.read().split()))
    return found


def end_children(kept: set[int]) -> None:
    """Kill what a task has started and left behind, in whatever session; spare `kept`."""
    while left := children() - kept:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def leaks_files() -> bool:
    """True when tasks have left so many files open that the next one might not get its own."""
    try:
        return len(os.listdir("/dev/fd")) > OPEN_FILES // 2
    except OSError:  # none is left to list them with
        return True


def private_pipes() -> tuple[int, int]:
    """Move the pipes away from 0 and 1, where prints and `input()` of a task could touch them."""
    requests, replies = os.dup(0), os.dup(1)  # not inherited by programs a task starts
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    return requests, replies


def import_target(target: str) -> Callable[..., Any]:
    """`package.module:name` -> the object."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def limit_memory(memory_gib: float) -> None:
    """Address space as it is after the imports plus `memory_gib`; no files, no core dumps."""
    extra = int(memory_gib * 2**30)
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        lower(resource.RLIMIT_AS, used + extra)
    lower(resource.RLIMIT_FSIZE, 0)
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_NOFILE, OPEN_FILES)


def limit_cpu(timeout_s: float) -> None:
    """Soft CPU limit for the next task: ends a runaway even if nobody is left to kill it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + timeout_s) + CPU_SLACK_S
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def lower(which: int, value: int) -> None:
    """Set soft and hard limit, never above what the parent allows."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))
