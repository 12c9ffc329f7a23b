"""`offline-rlvr config ...` and `objectives`: what can be configured."""

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import App
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from offline_rlvr.cli.options import Overrides, read_config
from offline_rlvr.config.schema import Config, Named

app = App(name="config", help="Look at configurations.")


@app.command
def keys() -> None:
    """Every config key with its type, default and meaning."""
    print("\n".join(_keys(Config, "", Config())))


@app.command
def show(config: Path, *overrides: Overrides) -> None:
    """The resolved configuration of a file with overrides, every default written out.

    Parameters
    ----------
    config
        YAML file of the job.
    """
    print(read_config(config, overrides).to_yaml(), end="")


def objectives() -> None:
    """Every objective with its parameters and defaults."""
    from offline_rlvr.objectives import load, names, parameters

    for name in names():
        objective = load(name)
        settings = ", ".join(f"{key}={value!r}" for key, value in parameters(name).items())
        summary = (type(objective).__doc__ or "").strip().splitlines()[0]
        print(f"{name:18} {summary}\n{'':18} {settings or 'no parameters'}")
        print(f"{'':18} anchors: {', '.join(sorted(objective.anchors)) or 'none'}")


def _keys(model: type[BaseModel], prefix: str, value: BaseModel | None) -> list[str]:
    """Lines for a section; `value` holds the defaults (None: a section that is off by default)."""
    lines: list[str] = []
    for name, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        sections = [
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        default = field.default if value is None else getattr(value, name)
        note = f"  # {field.description}" if field.description else ""
        shown_name = field.alias or name
        if sections:
            summary = field.description or (sections[0].__doc__ or "").splitlines()[0]
            off = " (null by default)" if default is None else ""
            lines.append(f"\n{prefix}{name}:{off}  # {summary}")
            lines += _keys(sections[0], f"{prefix}{name}.", default)
            if issubclass(sections[0], Named):
                lines.append(f"  {prefix}{name}.*  # settings of what `name` names")
            continue
        shown = "required" if default is PydanticUndefined else repr(default)
        lines.append(f"  {prefix}{shown_name}: {_type_name(field.annotation)} = {shown}{note}")
    return lines


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) in (types.UnionType, Union):
        return " | ".join(_type_name(kind) for kind in get_args(annotation))
    if get_origin(annotation) is Literal:
        return " | ".join(map(repr, get_args(annotation)))
    plain = isinstance(annotation, type) and not get_args(annotation)
    return "null" if annotation is type(None) else annotation.__name__ if plain else str(annotation)
