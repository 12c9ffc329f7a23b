"""Several named sets, e.g. the benchmarks of a held-out evaluation.

    problems:
      name: sets
      math500: {name: hub, path: HuggingFaceH4/MATH-500, split: test, question: problem}
      aime24: {name: files, path: data/aime24.jsonl}

An evaluation keeps every set apart, under its name.
"""

from typing import Any

from offline_rlvr import problems
from offline_rlvr.errors import ConfigError
from offline_rlvr.records import SET_NAME, Problem


def load(**sets: Any) -> list[Problem]:
    """All problems of all sets in the order they are listed, `SET/` before every id.

    Args:
        sets: By name, each `{name: ..., and that source's parameters}`.

    Raises:
        ConfigError: No sets, a name that cannot be part of a file's name, a set without a source,
            or one whose settings are wrong.
        DataError, ResourceError: From a source.
    """
    return [
        Problem(f"{name}/{problem.id}", problem.question, problem.answer)
        for name, part in by_name(**sets).items()
        for problem in part
    ]


def by_name(**sets: Any) -> dict[str, list[Problem]]:
    """The problems of each set; see `load`."""
    if not sets:
        raise ConfigError("sets: there is none", hint="e.g. aime24: {name: files, path: ...}")
    return {name: _load_one(name, source) for name, source in sets.items()}


def _load_one(name: str, source: Any) -> list[Problem]:
    if not SET_NAME.fullmatch(name):
        raise ConfigError(f"sets: {name!r} is not a name of letters, digits, '.', '_', '-'")
    if not isinstance(source, dict) or not isinstance(source.get("name"), str):
        raise ConfigError(f"sets: {name} is {source!r}; expected {{name: SOURCE, ...}}")
    try:
        return problems.load(**source)
    except ConfigError as error:
        raise ConfigError(f"sets: {name}: {error.message}", hint=error.hint) from error
