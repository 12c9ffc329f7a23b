"""The command `offline-rlvr`: thin verbs; every failure is a plain message and an exit code."""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from types import FrameType

from cyclopts import App

from offline_rlvr import __version__
from offline_rlvr.cli import config, job, pool, run
from offline_rlvr.cli.compare import compare
from offline_rlvr.cli.lab import lab
from offline_rlvr.cli.study import study
from offline_rlvr.errors import Interrupted, OfflineRlvrError, ResourceError

#: As a shell reports a program that SIGPIPE has ended.
NO_READER = 128 + signal.SIGPIPE

app = App(
    name="offline-rlvr",
    version=__version__,
    suppress_keyboard_interrupt=False,
    help="Offline fixed-pool RL with verifiable rewards: build a rollout pool once, "
    "train on it exactly once, study the drift.",
    help_epilogue="Exit codes: 0 ok, 1 bug, 2 usage or config, 3 invalid data, "
    "4 incompatible model or pool, 5 resource, 6 quality gate, 7 busy, "
    "75 interrupted (the same command continues), 141 nobody reads the output.",
)
app.command(job.quickstart)
app.command(pool.app)
app.command(job.train)
app.command(job.evaluate)
app.command(job.report)
app.command(compare)
app.command(run.app)
app.command(run.resume)
app.command(study)
app.command(lab)
app.command(config.app)
app.command(config.objectives)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    # Threads that wait by spinning make a shared machine tens of times slower; set before torch.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    signal.signal(signal.SIGTERM, _as_interrupt)
    _prepare_output()
    try:
        app(arguments)
        sys.stdout.flush()
    except OfflineRlvrError as error:
        _fail(error)
    except KeyboardInterrupt:
        _fail(
            Interrupted(
                "stopped; everything committed so far is kept",
                hint="type the same command again to continue",
            )
        )
    except BrokenPipeError:
        # The reader of our output went away (`| head`), and nobody is left to tell.
        _drop_output()
        sys.exit(NO_READER)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _drop_output()
        _fail(
            ResourceError(
                "no space left while writing the standard output",
                hint="free some space, or send the output elsewhere, then type the same command "
                "again",
            )
        )


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that Python does not try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _prepare_output() -> None:
    """Make printing possible where an output is closed (`>&-`) or cannot encode what is shown."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nothing, "w", encoding="utf-8"))
        elif isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(error: OfflineRlvrError) -> None:
    print(f"error[{error.code}]: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
