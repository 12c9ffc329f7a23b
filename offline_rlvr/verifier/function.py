"""`verifier.name: function`: a user's own reward function, in the same sandbox as everything else.

The function has TRL's reward signature, `f(completions=[...], answer=[...], **kwargs) ->
list[float | None]`;
None means "not scored". It is imported in the workers only and called with one response at a time,
so that
a hang or a crash is charged to the response that caused it. A process that a call starts is killed
when
the call ends; one that the module starts while it is imported lives as long as its worker.
"""

import dataclasses
import hashlib
import importlib.machinery
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from offline_rlvr.errors import ConfigError
from offline_rlvr.records import Verdict
from offline_rlvr.verifier.base import SandboxSettings, Verifier
from offline_rlvr.verifier.sandbox import Outcome


@dataclass(frozen=True, kw_only=True)
class FunctionSettings(SandboxSettings):
    """Settings of the function verifier.

    Attributes:
        path: `module:function`, importable from where the program runs, or
            `folder/file.py:function`.
        correct_from: A score of at least this counts as correct in the statistics; the
            reward is the score.
        kwargs: Further JSON-able keyword arguments for the function.
    """

    path: str
    correct_from: float = 0.5
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        module, colon, name = self.path.rpartition(":")
        if not (colon and module and name.isidentifier()):
            raise ConfigError(
                f"verifier.path is {self.path!r}; it must be module:function.",
                hint="for example verifier.path: my_rewards:score",
            )


class Function(Verifier):
    """Scores with a function of the user."""

    name: ClassVar[str] = "function"
    Settings = FunctionSettings

    def __init__(self, settings: FunctionSettings):
        self._module, _, self._function = settings.path.rpartition(":")
        self._source = find_source(self._module)
        self._correct_from = settings.correct_from
        self._kwargs = settings.kwargs
        super().__init__(settings)

    def _worker_target(self) -> str:
        return "offline_rlvr.verifier.sandbox.user_function:UserFunction"

    def _worker_settings(self) -> dict[str, Any]:
        is_file = self._module.endswith(".py")
        return {
            "module": str(self._source) if is_file else self._module,
            "function": self._function,
            "kwargs": self._kwargs,
        }

    def _versions(self) -> dict[str, str]:
        return {"source_sha256": hashlib.sha256(self._source.read_bytes()).hexdigest()}

    def score(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """See `Verifier.score`. The reward is the function's own number."""
        outcomes = self._sandbox.run([(text, gold) for gold, text in items])
        return [self._verdict(gold, o) for (gold, _), o in zip(items, outcomes, strict=True)]

    def check_gold(self, golds: Sequence[str]) -> list[str | None]:
        """Only an empty gold is refused: what the function makes of it is its own business."""
        return [None if gold.strip() else "the gold answer is empty" for gold in golds]

    def _verdict(self, gold: str, outcome: Outcome) -> Verdict:
        if outcome.failure is not None:
            return Verdict(outcome.failure, gold=gold)  # pyright: ignore[reportArgumentType]
        score = outcome.value
        if score is None or not math.isfinite(score):
            return Verdict("error", gold=gold)
        return Verdict("correct" if score >= self._correct_from else "incorrect", gold, score=score)


def find_source(module: str) -> Path:
    """The source file of a module, found without executing anything of it.

    Raises:
        ConfigError: There is none.
    """
    if module.endswith(".py"):
        if Path(module).is_file():
            return Path(module).resolve()
        raise ConfigError(f"verifier.path: there is no file {module!r}.")
    places: Any = None
    spec = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), places)
        if spec is None:
            break
        places = spec.submodule_search_locations
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(
            f"verifier.path: there is no module {module!r} on the import path.",
            hint=f"run where {parts[0]}.py lies (looked in {len(sys.path)} places), "
            "or give file.py:function",
        )
    return Path(spec.origin)


VERIFIER = Function
