"""What each metric of a run means, in the catalogue's words."""

from collections.abc import Iterable

from offline_rlvr.diagnostics.catalogue import describe
from offline_rlvr.errors import ConfigError


def definitions_of(keys: Iterable[str]) -> dict[str, str]:
    """key -> definition with its unit; a key of another version, which nobody defines, has none."""
    return {key: text for key in keys if (text := _definition(key))}


def _definition(key: str) -> str:
    try:
        metric = describe(key)
    except ConfigError:
        return ""
    return f"{metric.definition} [{metric.unit}]" if metric.unit else metric.definition
