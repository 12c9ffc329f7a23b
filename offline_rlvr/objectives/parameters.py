"""Hyper-parameters that know their range: fields of an objective, checked when it is made.

    @dataclass(frozen=True)
    class Ggpo(Parameters):
        beta: float = number(0.01, above=0.0)

A value out of range is a `ConfigError` that names what is allowed; nothing is converted silently
except an integer where a number is meant, and a list where a pair is meant (YAML has no pairs).
"""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from offline_rlvr.errors import ConfigError

Rule = dict[str, Any]


def number(
    default: float | None,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    optional: bool = False,
) -> Any:
    """A finite number in (above, ...], [least, ...] and [..., most]; `optional` allows null."""
    rule: Rule = {"kind": float, "above": above, "least": least, "most": most, "optional": optional}
    return field(default=default, metadata=rule)


def integer(
    default: int | None, *, least: int, optional: bool = False, word: str | None = None
) -> Any:
    """A whole number >= least; `optional` allows null, `word` a word instead."""
    rule: Rule = {"kind": int, "above": None, "least": least, "most": None, "optional": optional}
    rule["word"] = word
    return field(default=default, metadata=rule)


def choice(default: str, *others: str) -> Any:
    """One of a few words."""
    return field(default=default, metadata={"kind": str, "choices": (default, *others)})


def pair(default: tuple[float, float]) -> Any:
    """Two finite numbers, the first one smaller."""
    return field(default=default, metadata={"kind": tuple})


@dataclass(frozen=True)
class Parameters:
    """Base of every objective: its fields are its hyper-parameters.

    Raises:
        ConfigError: A value out of range, with the range.
    """

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, checked(spec, getattr(self, spec.name)))

    def adapted(self, metrics: Mapping[str, int | float]) -> dict[str, Any]:
        """Hyper-parameters that the next update has otherwise, by this one's metrics: none."""
        return {}


def checked(spec: Field, value: Any) -> Any:
    """The value of a parameter, integers and lists converted as said above.

    Raises:
        ConfigError: Out of range, with the range.
    """
    rule = spec.metadata
    result = _CHECKS[rule["kind"]](value, rule)
    if result is _REFUSED:
        raise ConfigError(
            f"objective parameter {spec.name} is {value!r}; allowed: {allowed(rule)}",
            hint=f"the default is {spec.name}: {_shown(spec.default)}",
        )
    return result


_REFUSED = object()


def allowed(rule: Any) -> str:
    """The range of a parameter in words, from its field's metadata."""
    if rule["kind"] is str:
        return ", ".join(rule["choices"])
    if rule["kind"] is tuple:
        return "two numbers [low, high] with low < high"
    word = "a whole number" if rule["kind"] is int else "a number"
    bounds = [
        f"{sign} {rule[key]}"
        for key, sign in (("above", ">"), ("least", ">="), ("most", "<="))
        if rule[key] is not None
    ]
    others = ["null"] if rule["optional"] else []
    others += [rule["word"]] if rule.get("word") else []
    return " or ".join([" ".join([word, " and ".join(bounds)]).strip(), *others])


def _shown(value: Any) -> str:
    return "null" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any, rule: Any) -> Any:
    if value is not None and value == rule.get("word"):
        return value
    if value is None and rule["optional"]:
        return None
    if not _is_number(value) or (rule["kind"] is int and not isinstance(value, int)):
        return _REFUSED
    low, least, most = rule["above"], rule["least"], rule["most"]
    fits = (
        (low is None or value > low)
        and (least is None or value >= least)
        and (most is None or value <= most)
    )
    return rule["kind"](value) if fits else _REFUSED


def _word(value: Any, rule: Any) -> Any:
    return value if isinstance(value, str) and value in rule["choices"] else _REFUSED


def _pair(value: Any, rule: Any) -> Any:
    fits = (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(map(_is_number, value))
        and value[0] < value[1]
    )
    return tuple(map(float, value)) if fits else _REFUSED


_CHECKS = {float: _number, int: _number, str: _word, tuple: _pair}
