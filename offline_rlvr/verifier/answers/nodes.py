"""The tree an answer is read into. Every character of the answer is in some leaf."""

from dataclasses import dataclass


class Malformed(Exception):
    """The text has no shape an answer can have."""


@dataclass(frozen=True)
class Scalar:
    """One expression. `percent` divides by 100; `unit` is a canonical name or None."""

    text: str
    percent: bool = False
    unit: str | None = None


@dataclass(frozen=True)
class Words:
    """An answer in words or a choice letter, lower case."""

    text: str


@dataclass(frozen=True)
class Seq:
    """`open`/`close` are brackets, or `""` for a bare list."""

    items: tuple["Node", ...]
    open: str = ""
    close: str = ""


@dataclass(frozen=True)
class SetOp:
    r"""`\cup`, `\cap` or `\setminus` of sets, left to right."""

    operator: str
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Relation:
    r"""`parts[0] ops[0] parts[1] ...` with `=`, `<`, `>`, `\le`, `\ge`, `\ne`, `\in`, `\approx`."""

    operators: tuple[str, ...]
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Either:
    """Relations joined by "or" (`every` False) or by "and" (`every` True)."""

    items: tuple["Node", ...]
    every: bool = False


@dataclass(frozen=True)
class MatrixNode:
    """Rows of scalars."""

    rows: tuple[tuple["Node", ...], ...]


@dataclass(frozen=True)
class Ratio:
    """`a:b:c`."""

    items: tuple["Node", ...]


@dataclass(frozen=True)
class BaseNumber:
    """`2516_8`: digits in a written base."""

    digits: str
    base: int


Node = Scalar | Words | Seq | SetOp | Relation | Either | MatrixNode | Ratio | BaseNumber


def is_inequality(node: Node) -> bool:
    """True for a relation with an order sign or `\\ne`."""
    return isinstance(node, Relation) and any(
        op not in ("=", "\\in", "\\approx") for op in node.operators
    )
