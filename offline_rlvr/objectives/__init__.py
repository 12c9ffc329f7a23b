"""One file per objective: the module's name is its config name, `load` imports that file.

`names()` imports no torch; `load` does. The interface is in `objectives.interface`.
"""

import difflib
import importlib
import pkgutil
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from offline_rlvr.errors import ConfigError
from offline_rlvr.objectives.parameters import checked

if TYPE_CHECKING:
    from offline_rlvr.objectives.interface import Objective

__all__ = ["load", "names", "parameters"]

_NOT_OBJECTIVES = {"interface", "parameters"}


def names() -> list[str]:
    """The objectives there are, in alphabetical order."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(set(found) - _NOT_OBJECTIVES)


def load(name: str, **params: Any) -> "Objective":
    """The objective of that name with these hyper-parameters.

    `load("ggpo", beta=0.01)`

    Args:
        name: One of `names()`.
        **params: Fields of its dataclass; the others keep their defaults.

    Raises:
        ConfigError: Unknown name or parameter (with the nearest one), or a value out of range (with
        the range).
    """
    cls = _class_of(name)
    known = {spec.name: spec for spec in fields(cls)}
    for param in params:
        if param not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(
                f"objective {name} has no parameter {param!r}; it has: {has}",
                hint=_nearest(param, list(known)),
            )
    return cls(**{param: checked(known[param], value) for param, value in params.items()})


def parameters(name: str) -> dict[str, Any]:
    """The hyper-parameters of an objective with their defaults."""
    return {spec.name: spec.default for spec in fields(_class_of(name))}


def _class_of(name: str) -> Any:
    if name not in names():
        raise ConfigError(
            f"there is no objective {name!r}; there are: {', '.join(names())}",
            hint=_nearest(name, names()),
        )
    module = importlib.import_module(f"{__name__}.{name}")
    return getattr(module, name.title().replace("_", ""))


def _nearest(word: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else None
