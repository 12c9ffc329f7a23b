"""What several verbs share: `--section.key value` overrides of the config."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from offline_rlvr.errors import ConfigError

if TYPE_CHECKING:
    from offline_rlvr.config import Config

Overrides = Annotated[
    str,
    Parameter(
        name="--SECTION.KEY",
        allow_leading_hyphen=True,
        help="Override any config key, e.g. --objective.name proximal_kl --train.seed 1; "
        "`offline-rlvr config keys` lists them.",
    ),
]


def read_config(path: Path, tokens: Sequence[str]) -> "Config":
    """Load the file with the overrides of the command line.

    Raises:
        ConfigError: A token that is not an override, or anything the loader complains about.
    """
    from offline_rlvr.config import load_config

    return load_config(path, parse_overrides(tokens))


def parse_overrides(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """`--a.b value` and `--a.b=value` as (key, text) pairs."""
    pairs: list[tuple[str, str]] = []
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or len(token) == 2:
            raise ConfigError(
                f"unexpected argument {token!r}",
                hint="overrides look like --train.learning_rate 3e-5",
            )
        key, equals, value = token[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key} needs a value")
            value = rest.pop(0)
        pairs.append((key, value))
    return pairs


def share_of(text: str) -> str:
    """A share written `1%` or `0.01`, as the latter.

    Raises:
        ConfigError: Not a number.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"{text!r} is not a share", hint="write 1% or 0.01") from None
    return repr(value)


def read_part(section: str, tokens: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Name and settings of one part from `--SECTION.name NAME --SECTION.KEY VALUE`, without a file.

    Args:
        section: The only section allowed, e.g. `verifier`.
        tokens: From the command line.

    Raises:
        ConfigError: A key of another section, a value that is not YAML, or no name.
    """
    from offline_rlvr.config.loader import merge, parse_yaml

    values: dict[str, Any] = {}
    for key, text in parse_overrides(tokens):
        first, *path = key.replace("-", "_").split(".")
        if first != section or not all(path) or not path:
            raise ConfigError(
                f"unknown option --{key}", hint=f"settings look like --{section}.name NAME"
            )
        layer: Any = parse_yaml(f"value: {text}", f"command line --{key}")[0].get("value")
        for part in reversed(path):
            layer = {part: layer}
        values = merge(values, layer)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"no {section} is named", hint=f"add --{section}.name NAME")
    return name, values
