"""What every verifier offers, and how one is loaded by name."""

import dataclasses
import difflib
import hashlib
import importlib
import json
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from offline_rlvr.errors import ConfigError
from offline_rlvr.records import Verdict
from offline_rlvr.verifier.sandbox import Limits, Sandbox

#: Settings that change how fast or where the work is done, never a verdict; not part of the
#: identifier.
SPEED_ONLY = frozenset({"workers", "max_tasks", "start_timeout_s"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    """Settings of the worker processes, shared by all verifiers.

    Attributes:
        workers: Worker processes.
        timeout_s: Wall-clock seconds for one response; then its worker is killed and replaced.
        memory_gib: Address space a worker may add on top of its imports.
        max_tasks: A worker is replaced after this many responses.
        start_timeout_s: Seconds a worker may take to import what it needs.
    """

    workers: int = 2
    timeout_s: float = 5.0
    memory_gib: float = 1.0
    max_tasks: int = 5000
    start_timeout_s: float = 120.0

    def __post_init__(self):
        for name in ("workers", "max_tasks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"verifier.{name} is {value!r}; it must be a whole number of at least 1."
                )
        for name, top in (("timeout_s", 3600), ("memory_gib", 4096), ("start_timeout_s", 3600)):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 < value <= top
            ):
                raise ConfigError(
                    f"verifier.{name} is {value!r}; it must be a number above 0, at most {top}."
                )


class Verifier(ABC):
    """Scores responses in sandboxed workers; use as a context manager, or call `close()`.

    The workers start on entry (or with the first call that needs them). Every method may be
    called from
    any thread.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[SandboxSettings]]

    def __init__(self, settings: SandboxSettings):
        self._settings = settings
        self._sandbox = Sandbox(
            self._worker_target(),
            self._worker_settings(),
            Limits(
                workers=settings.workers,
                timeout_s=settings.timeout_s,
                memory_gib=settings.memory_gib,
                max_tasks=settings.max_tasks,
                start_timeout_s=settings.start_timeout_s,
            ),
        )

    @abstractmethod
    def _worker_target(self) -> str:
        """`module:factory` that a worker imports; `factory(**settings)` gives the task function."""

    @abstractmethod
    def _worker_settings(self) -> dict[str, Any]:
        """JSON-able arguments of the factory."""

    @abstractmethod
    def _versions(self) -> dict[str, str]:
        """What besides the settings decides a verdict: library versions, a source digest."""

    @abstractmethod
    def score(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Score `(gold, response text)` pairs; the verdicts come in the same order.

        Raises:
            ResourceError: The workers cannot be started.
        """

    @abstractmethod
    def check_gold(self, golds: Sequence[str]) -> list[str | None]:
        """For each gold answer None when it can be used whole, else the reason why not."""

    @property
    def settings(self) -> dict[str, Any]:
        """All settings in effect, JSON-able."""
        return {"name": self.name, **dataclasses.asdict(self._settings)}

    @property
    def versions(self) -> dict[str, str]:
        """What besides the settings decides a verdict."""
        return self._versions()

    @property
    def id(self) -> str:
        """`name-xxxxxxxx`: same id, same verdicts. Usable as a folder name."""
        deciding = {k: v for k, v in self.settings.items() if k not in SPEED_ONLY}
        text = json.dumps([deciding, self.versions], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def close(self) -> None:
        """Kill the workers and remove their scratch directories; calling it twice is fine."""
        self._sandbox.close()

    def __enter__(self) -> Self:
        self._sandbox.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def names() -> list[str]:
    """The verifiers of this folder, by module name."""
    folder = str(Path(__file__).parent)
    return sorted(
        m.name for m in pkgutil.iter_modules([folder]) if not m.ispkg and m.name != "base"
    )


def load(name: str, **params: Any) -> Verifier:
    """Build the verifier in module `name` of this folder.

    Args:
        name: `math_verify` or `function`.
        **params: Fields of that verifier's `Settings`.

    Raises:
        ConfigError: Unknown name or parameter (with the nearest one), or a value out of range.
    """
    if name not in names():
        raise ConfigError(
            f"Unknown verifier {name!r}; there are: {', '.join(names())}.",
            hint=nearest(name, names(), "verifier.name: "),
        )
    module = importlib.import_module(f"offline_rlvr.verifier.{name}")
    cls: type[Verifier] = module.VERIFIER
    allowed = [f.name for f in dataclasses.fields(cls.Settings)]
    for key in params:
        if key not in allowed:
            raise ConfigError(
                f"The verifier {name!r} has no setting {key!r}; it has: {', '.join(allowed)}.",
                hint=nearest(key, allowed, "verifier."),
            )
    required = [
        f.name
        for f in dataclasses.fields(cls.Settings)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for key in required:
        if key not in params:
            raise ConfigError(
                f"The verifier {name!r} needs the setting {key!r}.", hint=f"set verifier.{key}"
            )
    return cls(cls.Settings(**params))


def nearest(word: str, allowed: Sequence[str], prefix: str) -> str | None:
    """A did-you-mean hint, or None when nothing is near."""
    found = difflib.get_close_matches(re.sub(r"[-. ]", "_", word), allowed, n=1, cutoff=0.5)
    return f"did you mean {prefix}{found[0]}?" if found else None
