"""What each metric of a run means, in the catalogue's words."""

from collections.abc import Iterable

from offline_rlvr.diagnostics.catalogue import describe
from offline_rlvr.errors import ConfigError

#: Written by the trainer itself, beside the diagnostics.
OF_THE_TRAINER = {
    "train/loss": "the objective's loss over the whole update; comparable within one objective",
    "train/learning_rate": "learning rate of the update",
    "time/update_s": "seconds since the update before",
}


def definitions_of(keys: Iterable[str]) -> dict[str, str]:
    """key -> definition with its unit; a key of another version, which nobody defines, has none."""
    return {key: text for key in keys if (text := _definition(key))}


def _definition(key: str) -> str:
    if key in OF_THE_TRAINER:
        return OF_THE_TRAINER[key]
    try:
        metric = describe(key)
    except ConfigError:
        return ""
    return f"{metric.definition} [{metric.unit}]" if metric.unit else metric.definition
