"""Where questions and answers come from: one module per source, the module name is the config name.

A source is a module with `load(**params) -> list[Problem]`. Adding a file here adds a source. No
torch.
"""

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any

from offline_rlvr.errors import ConfigError
from offline_rlvr.records import Problem
from offline_rlvr.settings import check_types

__all__ = ["dedupe", "load", "load_sets", "names", "overlap", "set_names"]

_NOT_SOURCES = {"rows"}


def names() -> list[str]:
    """The sources there are."""
    return sorted({module.name for module in pkgutil.iter_modules(__path__)} - _NOT_SOURCES)


def load(name: str, **params: Any) -> list[Problem]:
    """Load problems from the source `name` (a module of this package) with its parameters.

    Raises:
        ConfigError: There is no such source or parameter (the nearest is named), a required
            parameter is missing, or the source refuses a value.
        DataError: The source's data is damaged.
        ResourceError: The source needs a network or an optional package that is not there.
    """
    if name not in names():
        raise _unknown("problem source", name, names())
    source = importlib.import_module(f"{__name__}.{name}").load
    parameters = inspect.signature(source).parameters
    # A source with `**settings` hands them on, and judges their names itself.
    listed = {key: p for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    for given in params:
        if given not in listed and listed.keys() == parameters.keys():
            raise _unknown(f"parameter of problems {name!r}:", given, listed)
    for wanted, parameter in listed.items():
        if parameter.default is parameter.empty and wanted not in params:
            raise ConfigError(f"problems {name!r} need the parameter {wanted!r}")
    check_types(source, params)
    return source(**params)


def load_sets(name: str, **params: Any) -> dict[str, list[Problem]]:
    """Load problems like `load`, by the name of their set; a source other than `sets` is one set.

    Raises:
        See `load`.
    """
    if name != "sets":
        return {name: load(name, **params)}
    from offline_rlvr.problems.sets import by_name

    return by_name(**params)


def set_names(name: str, **params: Any) -> list[str]:
    """The names of the sets that `load_sets` gives, without loading them."""
    return list(params) if name == "sets" else [name]


def dedupe(problems: Iterable[Problem]) -> tuple[list[Problem], int]:
    """Keep the first problem of each exact question text; also return how many were dropped."""
    everything = list(problems)
    kept: dict[str, Problem] = {}
    for problem in everything:
        kept.setdefault(problem.question, problem)
    return list(kept.values()), len(everything) - len(kept)


def overlap(problems: Iterable[Problem], others: Iterable[Problem]) -> list[str]:
    """Ids of the problems whose question also stands in `others`, in order.

    Questions are compared without regard to case and to the amount of white space.
    """
    there = {_normalized(problem.question) for problem in others}
    return [problem.id for problem in problems if _normalized(problem.question) in there]


def _normalized(question: str) -> str:
    return " ".join(question.split()).casefold()


def _unknown(what: str, found: str, allowed: Iterable[str]) -> ConfigError:
    allowed = sorted(allowed)
    nearest = difflib.get_close_matches(found, allowed, n=1)
    return ConfigError(
        f"unknown {what} {found!r}; allowed: {', '.join(allowed)}",
        hint=f"did you mean {nearest[0]!r}?" if nearest else None,
    )
