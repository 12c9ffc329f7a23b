"""Every error a user can meet: what was found, what is allowed, what to type next.

An error carries a stable `code` (for scripts and tests), a `hint` (what to do) and the process
`exit_code`.
"""


def printable(text: str) -> str:
    r"""Text that cannot steer a terminal: all but newlines and tabs is escaped if not printable.

    Covers terminal escapes (`\x1b`), carriage returns, 8-bit controls, bidirectional overrides and
    surrogates.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


class OfflineRlvrError(Exception):
    """Base of all errors raised on purpose. Exit code 1 (a bug) unless a subclass says better.

    Args:
        message: What was found and what is allowed, in one or a few plain sentences.
        hint: What to type or change next.
    """

    code = "bug"
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        text = self.message if self.hint is None else f"{self.message}\n  -> {self.hint}"
        return printable(text)  # a message may quote a hostile file


class ConfigError(OfflineRlvrError):
    """A config file, an override or a command line that cannot be used; nothing was started."""

    code = "config"
    exit_code = 2


class DataError(OfflineRlvrError):
    """Damaged or invalid data (pool, problems, run folder); never trained on."""

    code = "data"
    exit_code = 3


class BatchError(DataError):
    """A tensor batch that violates its contract; names the group and the response."""

    code = "batch"


class IncompatibleError(OfflineRlvrError):
    """Model, tokenizer, template or settings that do not belong to this pool or run."""

    code = "incompatible"
    exit_code = 4


class ResourceError(OfflineRlvrError):
    """Not enough memory, disk, time or a missing optional package."""

    code = "resource"
    exit_code = 5


class QualityGateError(OfflineRlvrError):
    """The work ran, but fails a gate (too few mixed groups, too many unscored, NaN loss)."""

    code = "quality"
    exit_code = 6


class BusyError(OfflineRlvrError):
    """Another process is writing this pool or run."""

    code = "busy"
    exit_code = 7


class Interrupted(OfflineRlvrError):
    """Stopped on request at a safe point; the same command continues."""

    code = "interrupted"
    exit_code = 75
