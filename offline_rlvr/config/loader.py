"""From a YAML file and `--key.sub value` overrides to a checked `Config`, or every problem at once.

A file may name another one under `base:`; its keys win over the base's, and command-line overrides
win over both. Where a layer changes the `name` of a part (say `objective.name`), the settings
beside it in the layers below belonged to another thing and are dropped. A condition that names its
metric is one value, and replaces the one below whole; one that does not (`stop_when.for`) edits it.
"""

# pyright: basic
# (PyYAML has no types.)

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, PrivateAttr, ValidationError

from offline_rlvr.config import schema
from offline_rlvr.errors import ConfigError

Part = TypeVar("Part")
Key = tuple[str, ...]
CONDITIONS = {("train", "stop_when"), ("reference", "refresh_when"), ("old", "refresh_when")}


class Config(schema.Config):
    """A checked configuration that remembers where each key was written."""

    _where: dict[Key, str] = PrivateAttr(default_factory=dict)

    def where(self, *key: str) -> str:
        """`file:line` (or the override) of the nearest written part of a key."""
        return _nearest(self._where, key)

    def build(self, section: str, load: Callable[..., Part], **extra: Any) -> Part:
        """Load a named part; its complaints get the file and line of the section.

        Args:
            section: Dotted path of a section with a `name`, e.g. `objective` or
                `evaluation.problems`.
            load: The package's `load(name, **params)`.
            extra: Further arguments for `load`.
        """
        part: Any = self
        for key in section.split("."):
            part = getattr(part, key)
        try:
            return load(part.name, **part.params, **extra)
        except ConfigError as error:
            place = self.where(*section.split("."), "name")
            raise ConfigError(f"{place}: {section}: {error.message}", hint=error.hint) from error

    def to_yaml(self) -> str:
        """The resolved configuration, every default written out; loads to the same `Config`."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_config(path: str | Path, overrides: Sequence[tuple[str, str]] = ()) -> Config:
    """Read, merge and check.

    Args:
        path: The YAML file.
        overrides: (dotted key, YAML text) pairs, e.g. ("objective.beta", "0.1").

    Raises:
        ConfigError: Lists every problem with file and line, and the nearest key for an unknown one.
    """
    values, where = read_with_base(Path(path))
    for key, text in overrides:
        layer, place = _override(key, text)
        values = merge(values, layer)
        where.update(place)
    return checked(values, where)


def checked(values: dict[str, Any], where: dict[Key, str]) -> Config:
    """The config of some values, written at the given places.

    Raises:
        ConfigError: As `load_config`.
    """
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(problem, where) for problem in error.errors()),
            hint="`offline-rlvr config keys` lists every key with its default; nothing was started",
        ) from None
    config._where = where
    return config


def merge(below: dict[str, Any], above: dict[str, Any], at: Key = ()) -> dict[str, Any]:
    """Deep merge; a part whose `name` changes, or a condition with a metric, starts afresh.

    Args:
        below: The values so far.
        above: These win.
        at: Where in the config both lie.
    """
    renamed = "name" in above and "name" in below and above["name"] != below["name"]
    if renamed or (at in CONDITIONS and _names_a_metric(above)):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = merge(below[key], value, (*at, str(key))) if both else value
    return merged


def _names_a_metric(condition: dict[str, Any]) -> bool:
    """In either form: `{metric: weights/ess, ...}` or `{weights/ess: < 1e-3}`."""
    return any(key == "metric" or "/" in str(key) for key in condition)


def read_with_base(
    path: Path, seen: tuple[Path, ...] = ()
) -> tuple[dict[str, Any], dict[Key, str]]:
    """The values of a file over those of its bases, and where each key was written.

    Args:
        path: The YAML file.
        seen: Files that have named this one as their base.

    Raises:
        ConfigError: A file that cannot be read, is not YAML, or is its own base.
    """
    if path.resolve() in seen:
        raise ConfigError(
            f"{path}: `base` leads back to this file", hint="remove one of the `base` keys"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the config {path}: {error.strerror}", hint="see `configs/` for examples"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    values, where = parse_yaml(text, str(path))
    base = values.pop("base", None)
    if base is None:
        return values, where
    if not isinstance(base, str):
        raise ConfigError(
            f"{_nearest(where, ('base',))}: base: a path of another YAML file is allowed"
        )
    below, below_where = read_with_base(path.parent / base, (*seen, path.resolve()))
    return merge(below, values), {**below_where, **where}


class _Loader(yaml.SafeLoader):
    """YAML that reads as it looks: 3e-5 is a float, `no` and `on` are text."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in entries
        if tag.rsplit(":", 1)[1] in ("null", "int", "merge")
    ]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _register(tag: str, pattern: str, first: str) -> None:
    import re

    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))


_register("bool", r"^(?:true|True|false|False)$", "tTfF")
_register(
    "float",
    r"^[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf|\.nan)$",
    "-+.0123456789",
)


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[Key, str]]:
    """Values, and `name:line` of every key. Repeated keys and non-mappings are refused."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        where: dict[Key, str] = {(): f"{name}:1"}
        if node is not None:
            _locate(node, (), name, where)
        values = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not valid YAML: {error}") from error
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected keys such as `train:`, found {type(values).__name__}")
    return values, where


def _locate(node: yaml.Node, key: Key, name: str, where: dict[Key, str]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        child = (*key, str(key_node.value))
        place = f"{name}:{key_node.start_mark.line + 1}"
        if child in where:
            raise ConfigError(
                f"{place}: {'.'.join(child)} is written twice (first at {where[child]})"
            )
        where[child] = place
        _locate(value_node, child, name, where)


def _override(key: str, text: str) -> tuple[dict[str, Any], dict[Key, str]]:
    path = tuple(part.replace("-", "_") for part in key.split("."))
    place = f"command line --{key}"
    value = parse_yaml(f"value: {text}", place)[0].get("value")
    layer: Any = value
    for part in reversed(path):
        layer = {part: layer}
    return layer, {path: place}


def _nearest(where: dict[Key, str], key: Key) -> str:
    while key and key not in where:
        key = key[:-1]
    return where.get(key, "config")


def _explain(problem: Any, where: dict[Key, str]) -> str:
    # Pydantic puts list positions into `loc` as ints; keys in `where` are text.
    key = tuple(str(part) for part in problem["loc"])
    dotted, place = ".".join(key), _nearest(where, key)
    if problem["type"] == "extra_forbidden":
        fields = _model_at(key[:-1]).model_fields
        allowed = [field.alias or name for name, field in fields.items()]
        near = difflib.get_close_matches(key[-1], allowed, n=1)
        guess = f"did you mean {near[0]!r}?" if near else f"allowed here: {', '.join(allowed)}"
        return f"{place}: {dotted}: unknown key; {guess}"
    found = "" if problem["type"] == "missing" else f", found {problem['input']!r}"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{place}: {dotted}: expected {message}{found}"


def _model_at(key: Key) -> type[BaseModel]:
    """The section class that a key path leads to (the whole config when it leads nowhere)."""
    model: type[BaseModel] = schema.Config
    for part in key:
        field = model.model_fields.get(part)
        inner = getattr(field.annotation, "__args__", (field.annotation,)) if field else ()
        models = [item for item in inner if isinstance(item, type) and issubclass(item, BaseModel)]
        if not models:
            return model
        model = models[0]
    return model
