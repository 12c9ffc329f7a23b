"""`offline-rlvr config ...` and `objectives`: what can be configured."""

import types
from pathlib import Path
from typing import Any, get_args

from cyclopts import App
from pydantic import BaseModel

from offline_rlvr.cli.options import Overrides, read_config

app = App(name="config", help="Look at configurations.")


@app.command
def keys() -> None:
    """Every config key with its type, default and meaning."""
    from offline_rlvr.config.schema import Config

    for line in _keys(Config, ""):
        print(line)


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


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    lines: list[str] = []
    if model.__doc__ and prefix:
        lines.append(f"\n{prefix[:-1]}: {model.__doc__.splitlines()[0]}")
    for name, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        sections = [
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if sections:
            lines += _keys(sections[0], f"{prefix}{name}.")
            continue
        note = f"  # {field.description}" if field.description else ""
        default = "required" if field.is_required() else repr(field.default)
        lines.append(f"  {prefix}{name}: {_type_name(field.annotation)} = {default}{note}")
    return lines


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, types.UnionType):
        return " | ".join(_type_name(kind) for kind in get_args(annotation))
    return "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))
