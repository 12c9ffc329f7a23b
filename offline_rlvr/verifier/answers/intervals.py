r"""Sets of real numbers as unions of intervals: `(3,4]`, `x<-1 \text{ or } x>2`, `x \ne 0`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import sympy

from offline_rlvr.verifier.answers.evaluate import Evaluator, Undefined, free_names
from offline_rlvr.verifier.answers.nodes import Either, Node, Relation, Scalar, Seq, SetOp
from offline_rlvr.verifier.answers.numeric import same_constant
from offline_rlvr.verifier.answers.scalars import value

_REALS = re.compile(r"\\mathbb\s*\{?\s*R\s*\}?|\\R")
_OPERATORS: dict[str, Callable[..., sympy.Basic]] = {
    "<": sympy.StrictLessThan,
    ">": sympy.StrictGreaterThan,
    "\\le": sympy.LessThan,
    "\\ge": sympy.GreaterThan,
    "\\ne": sympy.Ne,
}


class NotReal(Exception):
    """This is not a set of real numbers in one unknown."""


@dataclass(frozen=True)
class Span:
    """An interval; a point has equal closed ends."""

    low: sympy.Expr
    low_open: bool
    high: sympy.Expr
    high_open: bool


def same_set(a: list[Span], b: list[Span]) -> bool:
    """Equality of two normalized unions, end by end."""
    return len(a) == len(b) and all(
        (s.low_open, s.high_open) == (t.low_open, t.high_open)
        and order(s.low, t.low) == 0
        and order(s.high, t.high) == 0
        for s, t in zip(a, b, strict=True)
    )


def spans(node: Node) -> list[Span]:
    """The normalized union a node stands for.

    Raises:
        NotReal: It is no such set. Malformed, Undecided: see `scalars` and `numeric`.
    """
    if isinstance(node, Scalar):
        if _REALS.fullmatch(node.text):
            return [Span(sympy.S.NegativeInfinity, True, sympy.S.Infinity, True)]
        raise NotReal
    if isinstance(node, Seq):
        return _from_brackets(node)
    if isinstance(node, SetOp):
        result = spans(node.items[0])
        for item in node.items[1:]:
            result = _combine(node.operator, result, spans(item))
        return result
    if isinstance(node, Either):
        parts = [spans(item) for item in node.items]
        result = parts[0]
        for part in parts[1:]:
            result = _combine("\\cap" if node.every else "\\cup", result, part)
        return result
    if isinstance(node, Relation):
        return _from_relation(node)
    raise NotReal


def unknowns(node: Node) -> set[Any]:
    """The names that relations are about; an interval or a set has none."""
    if isinstance(node, Relation):
        found = [free_names(value(part)) for part in node.parts if isinstance(part, Scalar)]
    elif isinstance(node, Either):
        found = [unknowns(item) for item in node.items]
    else:
        found = []
    return set().union(*found)


def _from_brackets(node: Seq) -> list[Span]:
    if node.open == "\\{":
        points = [_endpoint(item) for item in node.items]
        return normalize([Span(p, False, p, False) for p in points])
    if node.open not in ("(", "[") or len(node.items) != 2:
        raise NotReal
    low, high = (_endpoint(item) for item in node.items)
    if order(low, high) >= 0:
        raise NotReal
    return [Span(low, node.open == "(", high, node.close == ")")]


def _endpoint(node: Node) -> sympy.Expr:
    if not isinstance(node, Scalar):
        raise NotReal
    expr = value(node)
    if expr.free_symbols:
        raise NotReal
    return expr


def _from_relation(node: Relation) -> list[Span]:
    if node.operators == ("\\in",):
        return spans(node.parts[1])
    expressions = [value(part) if isinstance(part, Scalar) else None for part in node.parts]
    names = set().union(*[e.free_symbols for e in expressions if e is not None])
    if None in expressions or len(names) != 1:
        raise NotReal
    name = sympy.Symbol("x", real=True)
    old = names.pop()
    result: list[Span] | None = None
    for index, operator in enumerate(node.operators):
        if operator not in _OPERATORS:
            raise NotReal
        left, right = (_renamed(e, old, name) for e in expressions[index : index + 2])
        solved = _solve(operator, left, right, name)
        result = solved if result is None else _combine("\\cap", result, solved)
    return result or []


def _renamed(expr: Any, old: sympy.Basic, name: sympy.Symbol) -> sympy.Expr:
    return expr.xreplace({old: name})


def _solve(operator: str, left: sympy.Expr, right: sympy.Expr, name: sympy.Symbol) -> list[Span]:
    if left == name and not right.free_symbols:
        return _half_line(operator, right)
    if right == name and not left.free_symbols:
        return _half_line(
            {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(operator, operator), left
        )
    relation = _OPERATORS[operator](left, right)
    if relation in (sympy.true, sympy.false):
        raise NotReal
    try:
        solution = sympy.solve_univariate_inequality(relation, name, relational=False)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise NotReal from error
    return normalize(_from_sympy(solution))


def _half_line(operator: str, end: sympy.Expr) -> list[Span]:
    low, high = sympy.S.NegativeInfinity, sympy.S.Infinity
    below = Span(low, True, end, operator != "\\le")
    above = Span(end, operator != "\\ge", high, True)
    return {"<": [below], "\\le": [below], ">": [above], "\\ge": [above]}.get(
        operator, [below, above]
    )


def _from_sympy(solution: Any) -> list[Span]:
    if isinstance(solution, sympy.Interval):
        ends: Any = solution  # its properties are typed wider than they are
        return [Span(ends.start, bool(ends.left_open), ends.end, bool(ends.right_open))]
    if isinstance(solution, sympy.FiniteSet):
        points: Any = solution.args
        return [Span(p, False, p, False) for p in points]
    if isinstance(solution, sympy.Union):
        return [s for part in solution.args for s in _from_sympy(part)]
    if solution is sympy.S.EmptySet:
        return []
    raise NotReal


def order(a: sympy.Expr, b: sympy.Expr) -> int:
    """-1, 0 or 1 for real constants, infinities included."""
    if same_constant(a, b):
        return 0
    low, high = sympy.S.NegativeInfinity, sympy.S.Infinity
    if a == low or b == high:
        return -1
    if a == high or b == low:
        return 1
    try:
        x, y = Evaluator(60).value(a), Evaluator(60).value(b)
        return -1 if x < y else 1
    except (Undefined, TypeError) as error:
        raise NotReal from error


def normalize(parts: list[Span]) -> list[Span]:
    """Sorted by lower end, overlapping and touching spans merged."""

    def by_low(s: Span, t: Span) -> int:
        return order(s.low, t.low) or s.low_open - t.low_open

    merged: list[Span] = []
    for span in sorted(parts, key=cmp_to_key(by_low)):
        last = merged[-1] if merged else None
        touch = 1 if last is None else order(span.low, last.high)
        if last is None or touch > 0 or (touch == 0 and span.low_open and last.high_open):
            merged.append(span)
            continue
        way = order(span.high, last.high)
        high_open = span.high_open if way > 0 else last.high_open
        if way == 0:
            high_open = span.high_open and last.high_open
        merged[-1] = Span(last.low, last.low_open, span.high if way >= 0 else last.high, high_open)
    return merged


def _combine(operator: str, a: list[Span], b: list[Span]) -> list[Span]:
    if operator == "\\cup":
        return normalize(a + b)
    if operator == "\\setminus":
        b = _complement(b)
    return normalize([s for x in a for y in b if (s := _meet(x, y)) is not None])


def _meet(x: Span, y: Span) -> Span | None:
    low, low_open = _tighter(x.low, x.low_open, y.low, y.low_open, 1)
    high, high_open = _tighter(x.high, x.high_open, y.high, y.high_open, -1)
    way = order(low, high)
    if way > 0 or (way == 0 and (low_open or high_open)):
        return None
    return Span(low, low_open, high, high_open)


def _tighter(
    a: sympy.Expr, a_open: bool, b: sympy.Expr, b_open: bool, direction: int
) -> tuple[sympy.Expr, bool]:
    way = order(a, b) * direction
    return (a, a_open or b_open) if way == 0 else (a, a_open) if way > 0 else (b, b_open)


def _complement(parts: list[Span]) -> list[Span]:
    result = []
    low, low_open = sympy.S.NegativeInfinity, True
    for span in parts:
        if order(low, span.low) < 0 or (not low_open and not span.low_open and low != span.low):
            result.append(Span(low, low_open, span.low, not span.low_open))
        low, low_open = span.high, not span.high_open
    if low != sympy.S.Infinity:
        result.append(Span(low, low_open, sympy.S.Infinity, True))
    return result
