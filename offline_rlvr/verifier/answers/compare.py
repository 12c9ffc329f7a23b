"""Does this answer equal the gold answer? Strict: shape against shape, never part against whole."""

import sympy

from offline_rlvr.verifier.answers import numeric
from offline_rlvr.verifier.answers.evaluate import free_names
from offline_rlvr.verifier.answers.intervals import NotReal, same_set, spans, unknowns
from offline_rlvr.verifier.answers.nodes import (
    BaseNumber,
    Either,
    MatrixNode,
    Node,
    Ratio,
    Relation,
    Scalar,
    Seq,
    SetOp,
    Words,
    is_inequality,
)
from offline_rlvr.verifier.answers.scalars import is_symbol, same_scalar, value

#: Matching of unordered lists is quadratic; longer ones are compared in the order written.
MAX_UNORDERED = 60


def same(gold: Node, answer: Node) -> bool:
    """Equality of two parsed answers.

    Raises:
        Malformed: A scalar cannot be read. Undecided: equality could not be settled.
    """
    gold, answer = (_without_approximation(_assigned_list(node)) for node in (gold, answer))
    if isinstance(gold, Relation) and isinstance(answer, Relation):
        return _same_relation(gold, answer)
    if isinstance(answer, Relation) and not is_inequality(answer):
        inner = _value_of(answer)
        return inner is not None and same(gold, inner)
    if isinstance(gold, Relation) and not is_inequality(gold):
        inner = _value_of(gold)
        return inner is not None and same(inner, answer)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return _words(gold) is not None and _words(gold) == _words(answer)
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return same_scalar(gold, answer)
    if isinstance(gold, BaseNumber) or isinstance(answer, BaseNumber):
        return _same_base(gold, answer)
    if isinstance(gold, MatrixNode) or isinstance(answer, MatrixNode):
        return _same_matrix(gold, answer)
    if isinstance(gold, Ratio) or isinstance(answer, Ratio):
        return _same_ratio(gold, answer)
    if isinstance(gold, Seq) and isinstance(answer, Seq):
        return _same_seq(gold, answer) or _same_spans(gold, answer)
    if _single_set(gold) or _single_set(answer):
        return same(_unwrap(gold), _unwrap(answer))
    return _same_spans(gold, answer)


def _value_of(relation: Relation) -> Node | None:
    r"""The value that `x = 7`, `f(2) = 7`, `x \in (1,2)` or `3+4 = 7` gives, else None."""
    parts = list(relation.parts)
    if relation.operators == ("\\in",):
        return parts[1] if _is_name(parts[0]) else None
    if "\\in" in relation.operators:
        return None
    if _is_name(parts[0]) and not _mentions(parts[0], parts[1:]):
        parts = parts[1:]
    last = parts[-1]
    return last if all(same(part, last) for part in parts[:-1]) else None


def _without_approximation(node: Node) -> Node:
    r"""`\sqrt{2} \approx 1.414` is the square root of 2 if that is roughly true; else unchanged."""
    if not isinstance(node, Relation) or "\\approx" not in node.operators:
        return node
    cut = node.operators.index("\\approx")
    exact, rough = node.parts[cut], node.parts[cut + 1 :]
    if not isinstance(exact, Scalar) or not all(isinstance(r, Scalar) for r in rough):
        return node
    if _is_name(exact) and len(rough) == 1:
        return Relation((*node.operators[:cut], "="), node.parts)
    if not all(numeric.roughly(value(exact), value(r)) for r in rough if isinstance(r, Scalar)):
        return node
    return Relation(node.operators[:cut], node.parts[: cut + 1]) if cut else exact


def _is_name(node: Node) -> bool:
    """A name, or a point of names as in `(x, y) = (1, 2)`."""
    if isinstance(node, Scalar):
        return is_symbol(node.text)
    return isinstance(node, Seq) and node.open == "(" and all(map(_is_name, node.items))


def _mentions(name: Node, others: list[Node]) -> bool:
    """True when the name on the left also stands on the right, as in `x = x^2 - 1`."""
    left = free_names(value(name)) if isinstance(name, Scalar) else set()
    return any(left & free_names(value(o)) for o in others if isinstance(o, Scalar))


def _assigned_list(node: Node) -> Node:
    """`x = 2, x = 3` -> the list `2, 3`; `x = 5, y = 3` stays a list of equations."""
    if not isinstance(node, Seq) or len(node.items) < 2:
        return node
    equations = [i for i in node.items if isinstance(i, Relation) and i.operators == ("=",)]
    if not equations or equations[0] is not node.items[0] or not _is_name(equations[0].parts[0]):
        return node
    name = equations[0].parts[0]
    if all(e.parts[0] == name for e in equations):
        items = tuple(i.parts[1] if isinstance(i, Relation) else i for i in node.items)
        return Seq(items, node.open, node.close)
    return node


def _same_relation(gold: Relation, answer: Relation) -> bool:
    if is_inequality(gold) or is_inequality(answer):
        if not (is_inequality(gold) and is_inequality(answer)):
            return _same_spans(gold, answer)
        return _same_spans(gold, answer) or _same_inequality(gold, answer)
    if "\\in" in gold.operators + answer.operators or len(gold.parts) + len(answer.parts) > 4:
        left, right = _value_of(gold), _value_of(answer)
        return left is not None and right is not None and same(left, right)
    if gold.parts[0] == answer.parts[0] and same(gold.parts[1], answer.parts[1]):
        return True
    left, right = _difference(gold), _difference(answer)
    if left is None or right is None:
        return False
    return _proportional(left, right) is not None


def _same_inequality(gold: Relation, answer: Relation) -> bool:
    """Inequalities in several unknowns: proportional with the right sign."""
    if len(gold.operators) != 1 or len(answer.operators) != 1:
        return False
    left, right = _difference(gold), _difference(answer)
    if left is None or right is None:
        return False
    factor = _proportional(left, right)
    if factor is None:
        return False
    flip = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
    operator = (
        answer.operators[0] if factor > 0 else flip.get(answer.operators[0], answer.operators[0])
    )
    return gold.operators[0] == operator


def _difference(relation: Relation) -> sympy.Expr | None:
    first, second = relation.parts[0], relation.parts[1]
    if not isinstance(first, Scalar) or not isinstance(second, Scalar):
        return None
    return sympy.Add(value(first), sympy.Mul(-1, value(second), evaluate=False), evaluate=False)


def _proportional(a: sympy.Expr, b: sympy.Expr) -> float | None:
    """A non-zero constant c with a = c b everywhere, as a float, or None."""
    names = free_names(a)
    if not names or names != free_names(b):
        return None
    return numeric.constant_factor(a, b)


def _words(node: Node) -> str | None:
    if isinstance(node, Words):
        return node.text
    if isinstance(node, Scalar) and len(node.text) == 1 and node.text.isalpha():
        return node.text.lower()
    return None


def _same_base(gold: Node, answer: Node) -> bool:
    if isinstance(gold, BaseNumber) and isinstance(answer, BaseNumber):
        return gold.base == answer.base and gold.digits.lstrip("0") == answer.digits.lstrip("0")
    return False


def _same_matrix(gold: Node, answer: Node) -> bool:
    if not isinstance(gold, MatrixNode) or not isinstance(answer, MatrixNode):
        return False
    if [len(r) for r in gold.rows] != [len(r) for r in answer.rows]:
        return False
    return all(
        same(g, a)
        for gold_row, row in zip(gold.rows, answer.rows, strict=True)
        for g, a in zip(gold_row, row, strict=True)
    )


def _same_ratio(gold: Node, answer: Node) -> bool:
    """`6:8` is `3:4`; two terms are also the fraction; `12:00` is a time and has no fraction."""
    if gold == answer:
        return True
    if isinstance(gold, Ratio) and isinstance(answer, Ratio) and _other_units(gold, answer):
        return False
    left, right = _ratio_terms(gold), _ratio_terms(answer)
    if left is None or right is None or len(left) != len(right):
        return False
    pairs = list(zip(left, right, strict=True))
    (a, b), rest = pairs[0], pairs[1:]
    return all(
        numeric.same_constant(sympy.Mul(a, d, evaluate=False), sympy.Mul(b, c, evaluate=False))
        for c, d in rest
    )


def _other_units(gold: Ratio, answer: Ratio) -> bool:
    """True for `3:45 a.m.` beside `3:45 p.m.`."""
    units = [{i.unit for i in r.items if isinstance(i, Scalar)} - {None} for r in (gold, answer)]
    return bool(units[0] and units[1] and units[0] != units[1])


def _ratio_terms(node: Node) -> list[sympy.Expr] | None:
    if isinstance(node, Ratio):
        terms = [value(i) for i in node.items if isinstance(i, Scalar)]
        named = len(terms) < len(node.items) or any(free_names(t) for t in terms)
        return None if named or sympy.S.Zero in terms else terms
    if isinstance(node, Scalar):
        expr = value(node)
        return None if free_names(expr) else [expr, sympy.S.One]
    return None


def _same_seq(gold: Seq, answer: Seq) -> bool:
    """A bare list or a set has no order, a point has; a list beside a point takes the point's."""
    shapes = (gold.open + gold.close, answer.open + answer.close)
    if shapes in (("", "()"), ("()", ""), ("[]", "")):
        plain, point = (gold, answer) if shapes[0] == "" else (answer, gold)
        named = _coordinates(plain)
        if named is None and shapes[0] == "":
            return _same_unordered(gold.items, answer.items, False)
        ordered = Seq(named or plain.items)
        left, right = (ordered, point) if plain is gold else (point, ordered)
        return _same_ordered(left.items, right.items)
    unordered = ("", "\\{\\}")
    if shapes[0] in unordered and shapes[1] in unordered:
        return _same_unordered(gold.items, answer.items, shapes != ("", ""))
    vectors = set(shapes) == {"()", "[]"} and len(gold.items) > 2
    return (shapes[0] == shapes[1] or vectors) and _same_ordered(gold.items, answer.items)


def _coordinates(plain: Seq) -> tuple[Node, ...] | None:
    """The values of `y = 3, x = 5` by name, or None for a list of anything else."""
    pairs = {}
    for item in plain.items:
        if (
            not isinstance(item, Relation)
            or item.operators != ("=",)
            or not isinstance(item.parts[0], Scalar)
            or not _is_name(item.parts[0])
        ):
            return None
        pairs[item.parts[0].text] = item.parts[1]
    return tuple(pairs[name] for name in sorted(pairs)) if len(pairs) == len(plain.items) else None


def _same_ordered(gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool:
    return len(gold) == len(answer) and all(map(same, gold, answer))


def _same_unordered(gold: tuple[Node, ...], answer: tuple[Node, ...], as_sets: bool) -> bool:
    if max(len(gold), len(answer)) > MAX_UNORDERED:
        return _same_ordered(gold, answer)
    if as_sets:
        return all(any(same(g, a) for a in answer) for g in gold) and all(
            any(same(g, a) for g in gold) for a in answer
        )
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for item in gold:
        match = next((a for a in left if same(item, a)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _single_set(node: Node) -> bool:
    return isinstance(node, Seq) and node.open == "\\{" and len(node.items) == 1


def _unwrap(node: Node) -> Node:
    return node.items[0] if isinstance(node, Seq) and _single_set(node) else node


def _same_spans(gold: Node, answer: Node) -> bool:
    kinds = (Seq, SetOp, Either, Relation, Scalar)
    if not isinstance(gold, kinds) or not isinstance(answer, kinds):
        return False
    left, right = unknowns(gold), unknowns(answer)
    if left and right and left != right:  # x < 7 is not y < 7; an interval has no name
        return False
    if isinstance(gold, Seq) and isinstance(answer, Seq) and "" in (gold.open, answer.open):
        return False
    try:
        return same_set(spans(gold), spans(answer))
    except NotReal:
        return False
