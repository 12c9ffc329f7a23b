"""Scalar LaTeX -> sympy expression, whole or not at all; equality of scalars. Worker side only."""

import re
from functools import lru_cache
from typing import Any

import sympy
from antlr4 import Token
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

from offline_rlvr.verifier.answers import numeric
from offline_rlvr.verifier.answers.evaluate import free_names
from offline_rlvr.verifier.answers.latex import degrees_to_radians
from offline_rlvr.verifier.answers.literals import Literal, literal, same_literal
from offline_rlvr.verifier.answers.nodes import Malformed, Scalar

#: Names keep their case (R is not r), unlike the library's default.
_CONFIG = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
#: Spellings that the grammar reads in part or wrongly; better not read at all.
_MISREAD = re.compile(r"\d\s*_|\d[eE][-+]?\d|\\usd|\\OR|\\AND|[\"#@]|\\(?:ldots|dots|cdots)|\.\.\.")
_INFINITY = re.compile(r"([-+]?)\s*\\infty")
_PRIME = re.compile(r"(?<=[a-zA-Z])'+")
#: The grammar reads `2(3)` as a mixed number.
_NUMBER_TIMES = re.compile(r"(?<![\w.^}])(\d+(?:\.\d+)?)\s*(?=\()")


class _WholeParser(_Latex2Sympy):
    """The library's converter, refusing a text of which a tail stays unread."""

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        rule = parser.math

        def whole():
            tree = rule()
            stream: Any = parser.getTokenStream()
            if stream.LA(1) != Token.EOF:
                raise Malformed("only a part of it can be read")
            return tree

        parser.math = whole
        return parser


@lru_cache(maxsize=4096)
def expression(text: str) -> sympy.Expr:
    """Parse one scalar.

    Raises:
        Malformed: It is not an expression, or only a part of it is one.
    """
    if match := _INFINITY.fullmatch(text):
        return sympy.S.NegativeInfinity if match.group(1) == "-" else sympy.S.Infinity
    number = literal(text)
    if number is not None:
        return sympy.Rational(number.value.numerator, number.value.denominator)
    if _MISREAD.search(text):
        raise Malformed(f"cannot be read: {text[:80]}")
    source = degrees_to_radians(_PRIME.sub("_{prime}", text))
    source = _NUMBER_TIMES.sub(r"\1\\cdot ", source)
    try:
        parsed = _WholeParser(is_real=None, config=_CONFIG).parse(source)
    except (MemoryError, RecursionError, Malformed):
        raise
    except Exception as error:  # the grammar raises bare Exception
        raise Malformed(f"cannot be read: {text[:80]}") from error
    if not isinstance(parsed, sympy.Expr):
        raise Malformed(f"is not one expression: {text[:80]}")
    return parsed


def value(scalar: Scalar) -> sympy.Expr:
    """The expression with its percent sign applied."""
    parsed = expression(scalar.text)
    if scalar.percent:
        return sympy.Mul(parsed, sympy.Rational(1, 100), evaluate=False)
    return parsed


def is_symbol(text: str) -> bool:
    """True for a lone name, `x`, `x_1`, `\\theta`, or a call of one, `f(x)`."""
    return bool(
        re.fullmatch(
            r"\\?[a-zA-Z]+'?(?:_\{?\w+\}?)?(?:\s*\([^()]*\))?(?:\^\{-1\}\([^()]*\))?|f\^\{-1\}\([^()]*\)",
            text,
        )
    )


def same_scalar(gold: Scalar, answer: Scalar) -> bool:
    """Equality of two expressions; a decimal may be a rounding, see `literals.approximates`."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    left, right = _literal(gold), _literal(answer)
    if left is not None and right is not None:
        return same_literal(left, right)
    a, b = value(gold), value(answer)
    if free_names(a) or free_names(b):
        return numeric.same_function(a, b)
    if numeric.same_constant(a, b):
        return True
    decimal = next((x for x in (left, right) if x is not None and x.step is not None), None)
    if decimal is not None and numeric.real_close(b if decimal is left else a, decimal):
        return True
    return (gold.unit == "degree") != (answer.unit == "degree") and _same_angle(gold, a, answer, b)


def _same_angle(gold: Scalar, a: sympy.Expr, answer: Scalar, b: sympy.Expr) -> bool:
    r"""`30^\circ` is also `\frac{\pi}{6}`: one side in degrees, the other a multiple of pi."""
    degrees, radians = (a, b) if gold.unit == "degree" else (b, a)
    if not radians.has(sympy.pi):
        return False
    return numeric.same_constant(
        sympy.Mul(degrees, sympy.pi, sympy.Rational(1, 180), evaluate=False), radians
    )


def _literal(scalar: Scalar) -> Literal | None:
    found = literal(scalar.text)
    if found is None or not scalar.percent:
        return found
    return Literal(
        found.value / 100, None if found.step is None else found.step / 100, found.digits
    )
