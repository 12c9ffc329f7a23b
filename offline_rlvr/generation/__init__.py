"""From prompt ids to responses with the log-prob of every token: one module per back-end.

A back-end is a module with `load(...) -> Generator`; the module name is the config name.
Importing this package imports no torch.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

from offline_rlvr.errors import ConfigError
from offline_rlvr.generation.sampling import Sampling, seed_for
from offline_rlvr.records import Response

__all__ = ["BACKENDS", "Generator", "Sampling", "load", "seed_for"]

#: Modules of this package that are back-ends (the others are what they share).
BACKENDS = ("hf",)


class Generator(Protocol):
    """What the pool builder and the evaluator ask of a back-end."""

    sampling: Sampling

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> list[list[Response]]:
        """Sample `len(seeds[i])` responses for the prompt ids `prompts[i]`, in input order.

        Each response holds the ids as drawn and, for each, its log-prob under the distribution it
        was drawn from; a back-end that cannot give a finite one raises DataError instead of a
        placeholder.
        """
        ...


def load(name: str, **params: Any) -> Generator:
    """The generator of the back-end `name` with its parameters.

    Raises:
        ConfigError: There is no such back-end.
    """
    if name not in BACKENDS:
        raise ConfigError(
            f"unknown generation back-end {name!r}; allowed: {', '.join(BACKENDS)}",
            hint=f"set the back-end to {BACKENDS[0]!r}",
        )
    return importlib.import_module(f"{__name__}.{name}").load(**params)
