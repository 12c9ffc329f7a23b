"""From prompt ids to responses with the log-prob of every token: one module per back-end.

A back-end is a module with `load(...) -> Generator`; the module name is the config name.
Importing this package imports no torch.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.generation.sampling import Sampling, seed_for
from offline_rlvr.records import Response
from offline_rlvr.settings import check_types

__all__ = [
    "BACKENDS",
    "Answer",
    "Generator",
    "Pending",
    "Sampling",
    "check",
    "engine_of",
    "load",
    "responses_of",
    "seed_for",
]

#: Modules of this package that are back-ends (the others are what they share).
BACKENDS = ("hf", "vllm", "server", "ray")


#: What became of a prompt: its responses, or why they cannot be used.
Answer = list[Response] | DataError
#: Work handed to a back-end: call it to wait for the answers, one per prompt, in order.
Pending = Callable[[], list[Answer]]


class Generator(Protocol):
    """What the pool builder asks of a back-end."""

    sampling: Sampling

    def submit(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> Pending:
        """Have `len(seeds[i])` responses sampled for the prompt ids `prompts[i]`.

        Several submissions may be under way, so that an engine stays busy while the last responses
        of an earlier one are still growing. Each response holds the ids as drawn and, for each, its
        log-prob under the distribution it was drawn from. Where the engine gave another number of
        responses, or no finite log-prob where one belongs, the answer is that error.

        Raises (on submitting or waiting):
            DataError: A prompt is empty.
            IncompatibleError: A prompt and its response do not fit the model.
            ResourceError: The engine is gone, out of memory or out of reach.
        """
        ...

    def close(self) -> None:
        """Let go of the engine, its processes and its memory."""
        ...


def responses_of(answers: Sequence[Answer]) -> list[list[Response]]:
    """The responses of answers that must all be usable; else raises the first error."""
    for answer in answers:
        if isinstance(answer, DataError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, DataError)]


#: What every back-end is given beside its own settings.
_GIVEN = {"name_or_path", "revision", "dtype", "device", "sampling", "adapter"}


def load(name: str, **params: Any) -> Generator:
    """The generator of the back-end `name` with its parameters.

    Raises:
        ConfigError: There is no such back-end, it has no such setting, needs one that is missing,
            or one is of another type. Further errors as the back-end's own `load`.
    """
    return _checked(name, params)(**params)


def check(name: str, **settings: Any) -> None:
    """Refuse settings that `load` would refuse for their names or types; loads no model.

    Raises:
        ConfigError: See `load`.
        ResourceError: The back-end needs a package that is not installed.
    """
    _checked(name, settings, _GIVEN)


def _checked(
    name: str, params: Mapping[str, Any], later: Set[str] = frozenset()
) -> Callable[..., Generator]:
    """The back-end's own `load`; it takes these parameters, and others come `later`."""
    if name not in BACKENDS:
        raise ConfigError(
            f"unknown generation back-end {name!r}; allowed: {', '.join(BACKENDS)}",
            hint=f"set the back-end to {BACKENDS[0]!r}",
        )
    backend = importlib.import_module(f"{__name__}.{name}").load
    parameters = inspect.signature(backend).parameters
    for given in params:
        if given not in parameters:
            raise ConfigError(
                f"the back-end {name!r} has no setting {given!r}; it has: "
                f"{', '.join(sorted(parameters.keys() - _GIVEN))}",
                hint="each back-end has settings of its own; leave out those of another",
            )
    for wanted, parameter in parameters.items():
        if parameter.default is parameter.empty and wanted not in params.keys() | later:
            raise ConfigError(f"the back-end {name!r} needs the setting {wanted!r}")
    check_types(backend, {key: params[key] for key in params.keys() - _GIVEN})
    return backend


def engine_of(name: str, params: Mapping[str, Any]) -> str:
    """What samples in the end: pools of one engine may go on with another way to reach it."""
    if name == "ray":
        inner = dict(params.get("backend") or {})
        return engine_of(str(inner.pop("name", "")), inner)
    return "vllm" if name == "server" else name
