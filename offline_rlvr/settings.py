"""Settings of a named part (a back-end, a problem source), checked against its `load`."""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from offline_rlvr.errors import ConfigError

#: Checked here; the part itself judges lists, tables and choices, of which it can say more.
_PLAIN = {int, float, bool, str, type(None), Mapping, Sequence}
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)


def check_types(load: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse values of another type than `load` declares; a whole number is a float, too.

    Args:
        load: Takes the settings as annotated arguments.
        given: Settings by name; those without an annotation there are passed over.

    Raises:
        ConfigError: Names the setting, its value and what it should be.
    """
    wanted = typing.get_type_hints(load)
    for name, value in given.items():
        if name not in wanted or not _plain(wanted[name]):
            continue
        try:
            TypeAdapter(wanted[name], config=_STRICT).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input ")
            raise ConfigError(f"{name} is {value!r}; it {reason}") from error


def _plain(wanted: Any) -> bool:
    """Whether a type is one of `_PLAIN`, or a union of them."""
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    return all((typing.get_origin(kind) or kind) in _PLAIN for kind in kinds)
