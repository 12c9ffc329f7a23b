"""Verbs in processes of their own, several at a time, one per device; a stop reaches all."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock

import torch

from offline_rlvr.errors import Interrupted, OfflineRlvrError, ResourceError

COMMAND = [sys.executable, "-c", "from offline_rlvr.cli.main import main; main()"]
#: Characters of a failed command's output that its error shows.
LAST_WORDS = 2000


class Commands:
    """Runs verbs with a share of the machine each.

    Args:
        parallel: Processes at a time. Each has its share of the CPU cores and, where there are
            GPUs, one of them.
    """

    def __init__(self, parallel: int):
        self.parallel = parallel
        self._running: list[subprocess.Popen[bytes]] = []
        self._lock = Lock()
        self._stopped = False

    def run(self, arguments: Sequence[object], log: Path | None = None, share: int = 0) -> None:
        """One verb to its end.

        Args:
            arguments: Of `offline-rlvr`.
            log: Where its output goes; None: to ours.
            share: Which part of the machine, below `parallel`.

        Raises:
            Interrupted: It was asked to stop, and can be continued.
            OfflineRlvrError: It failed: the error of its exit code, with its last words.
        """
        command = [*COMMAND, *map(str, arguments)]
        sink = log.open("ab") if log else None
        try:
            with self._lock:
                if self._stopped:
                    raise Interrupted("stopped before it was started")
                process = subprocess.Popen(
                    command,
                    stdout=sink,
                    stderr=subprocess.STDOUT if sink else None,
                    env=self._environment(share),
                    start_new_session=True,  # Ctrl-C comes from us, once
                )
                self._running.append(process)
            try:
                code = process.wait()
            except BaseException:  # Ctrl-C, or a SIGTERM that became one: it may finish its update
                process.send_signal(signal.SIGTERM)
                process.wait()
                raise
        finally:
            if sink:
                sink.close()
        self._running.remove(process)
        if code in (Interrupted.exit_code, -signal.SIGTERM):
            raise Interrupted("stopped", hint="type the same command again to continue")
        if code:
            words = log.read_text(errors="replace")[-LAST_WORDS:] if log else ""
            kinds = {kind.exit_code: kind for kind in OfflineRlvrError.__subclasses__()}
            raise kinds.get(code, ResourceError)(
                f"`offline-rlvr {' '.join(map(str, arguments))}` ended with exit code {code}\n"
                f"{words.strip()}",
                hint="mend the cause, then type the same command again; what is finished is kept",
            )

    def all(
        self, work: Sequence[tuple[Sequence[object], Path]], tell: Callable[[int], None]
    ) -> None:
        """Every (arguments, log), `parallel` at a time; what fails does not stop the others.

        Args:
            work: In the order in which it is begun.
            tell: Called with the place in `work` of what has ended well.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; every process has finished its update.
            OfflineRlvrError: Some failed; the first of them, and how many.
        """
        failures: list[OfflineRlvrError] = []
        shares = list(range(self.parallel))

        def one(number: int) -> int:
            with self._lock:
                share = shares.pop()
            try:
                self.run(*work[number], share)
            finally:
                shares.append(share)
            return number

        with ThreadPoolExecutor(self.parallel) as threads:
            pending = {threads.submit(one, number) for number in range(len(work))}
            try:
                while pending:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in done:
                        try:
                            tell(future.result())
                        except Interrupted:
                            raise
                        except OfflineRlvrError as error:
                            print(f"failed: {error.message}", flush=True)
                            failures.append(error)
            except BaseException:
                self.stop()
                for future in pending:
                    future.cancel()
                raise
        if failures:
            first = failures[0]
            others = f"\n({len(failures)} of {len(work)} failed)" if len(failures) > 1 else ""
            raise type(first)(first.message + others, hint=first.hint)

    def stop(self) -> None:
        """Ask every process to finish its update, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    def _environment(self, share: int) -> dict[str, str]:
        environment = dict(os.environ)
        if self.parallel > 1 or "OMP_NUM_THREADS" not in environment:
            threads = max(1, (os.cpu_count() or 1) // self.parallel)
            environment["OMP_NUM_THREADS"] = str(threads)
        if self.parallel > 1 and torch.cuda.is_available():
            environment["CUDA_VISIBLE_DEVICES"] = _visible_device(share)
        return environment


def _visible_device(share: int) -> str:
    """The name of the GPU of a share, also below an outer CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return names[share % len(names)]
