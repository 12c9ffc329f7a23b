"""Nested settings by dotted name: `train.learning_rate`."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in `value` that is not itself a mapping with entries."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
