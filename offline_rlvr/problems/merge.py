"""Several sources one after the other."""

from typing import Any

from offline_rlvr import problems
from offline_rlvr.errors import ConfigError
from offline_rlvr.records import Problem


def load(sources: list[dict[str, Any]]) -> list[Problem]:
    """Load every source and join them in the order they are listed.

    Ids stay as they are while they differ. As soon as two sources share one, every id is prefixed
    with the position of its source: `0/`, `1/`, ... Equal questions are kept here; whoever draws
    from the problems drops all but the first.

    Args:
        sources: Each `{name: ..., and that source's parameters}`.

    Raises:
        ConfigError: No sources, one without a name, or one whose settings are wrong.
        DataError, ResourceError: From a source.
    """
    if not isinstance(sources, list) or not sources:
        raise ConfigError(f"merge: sources is {sources!r}; expected a list of {{name: ..., ...}}")
    loaded = [_load_one(position, source) for position, source in enumerate(sources)]
    everything = [problem for part in loaded for problem in part]
    if len({problem.id for problem in everything}) == len(everything):
        return everything
    return [
        Problem(f"{position}/{problem.id}", problem.question, problem.answer)
        for position, part in enumerate(loaded)
        for problem in part
    ]


def _load_one(position: int, source: Any) -> list[Problem]:
    if not isinstance(source, dict) or not isinstance(source.get("name"), str):
        raise ConfigError(f"merge: source {position} is {source!r}; expected {{name: ..., ...}}")
    try:
        return problems.load(**source)
    except ConfigError as error:
        raise ConfigError(
            f"merge: source {position} ({source['name']}): {error.message}", hint=error.hint
        ) from error
