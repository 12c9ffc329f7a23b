"""A metric beyond a threshold, on which a training may act.

train: {stop_when: {metric: weights/ess, below: 1e-3, for: 20}}
train: {stop_when: {weights/ess: < 1e-3, for: 20}}                  the same
reference: {refresh_when: {reference/k3: "> 0.05", for: 10}}        YAML wants quotes around `>`
"""

import re
from typing import Any, Self, cast

from pydantic import ConfigDict, Field, model_validator

from offline_rlvr.config.section import PositiveInt, Section

COMPARISON = re.compile(r"([<>])\s*(\S+)")


class Condition(Section):
    """A metric beyond a threshold, so many measurements in a row."""

    model_config = ConfigDict(serialize_by_alias=True)

    metric: str = Field(description="a key of metrics.jsonl, such as weights/ess")
    below: float | None = Field(default=None, description="the threshold; either this or `above`")
    above: float | None = None
    in_a_row: PositiveInt = Field(
        default=1,
        alias="for",
        description="measurements in a row: one per update, of probe/* one per train.probe_every",
    )

    @property
    def terms(self) -> dict[str, Any]:
        """What was written: `metric`, `below` or `above`, `for`."""
        return self.model_dump(exclude_none=True)

    def holds(self, value: float) -> bool:
        """Whether a value is beyond the threshold."""
        if self.below is not None:
            return value < self.below
        return self.above is not None and value > self.above

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, given: Any) -> Any:
        """The short form becomes the keys."""
        if not isinstance(given, dict) or "metric" in given:
            return cast(Any, given)
        written = {str(key): value for key, value in cast(dict[Any, Any], given).items()}
        metrics = [key for key in written if "/" in key]
        if len(metrics) != 1:
            return written
        side, threshold = _comparison(metrics[0], str(written.pop(metrics[0])))
        return {"metric": metrics[0], side: threshold, **written}

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.below is None) == (self.above is None):
            raise ValueError("one threshold, `below` or `above`")
        return self


def _comparison(metric: str, text: str) -> tuple[str, float]:
    """`< 1e-3` -> ("below", 0.001)."""
    found = COMPARISON.fullmatch(text.strip())
    try:
        if found:
            return "below" if found[1] == "<" else "above", float(found[2])
    except ValueError:
        pass
    raise ValueError(f'`{metric}: < NUMBER` or `{metric}: "> NUMBER"`')
