"""Scalar LaTeX -> sympy expression, whole or not at all. Worker side only: imports the LaTeX grammar."""

import re
from functools import lru_cache
from typing import Any

import sympy
from antlr4 import Token
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

from offline_rlvr.verifier.answers.latex import degrees_to_radians
from offline_rlvr.verifier.answers.literals import literal
from offline_rlvr.verifier.answers.structure import Malformed, Scalar

#: Names keep their case (R is not r) and `2(3)` is a product, unlike the library's defaults.
_CONFIG = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
#: Spellings that the grammar reads in part or wrongly; better not read at all.
_MISREAD = re.compile(r"\d\s*_|\d[eE][-+]?\d|\\usd|\\OR|\\AND|[\"#@]|\\(?:ldots|dots|cdots)|\.\.\.")
_INFINITY = re.compile(r"([-+]?)\s*\\infty")
_PRIME = re.compile(r"(?<=[a-zA-Z])'+")
_FUNCTION_CALL = re.compile(r"(?<![a-zA-Z\\])[fgh]\(")


class _WholeParser(_Latex2Sympy):
    """The library's converter, refusing a text of which a tail stays unread."""

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        rule = parser.math

        def whole():
            tree = rule()
            if parser.getTokenStream().LA(1) != Token.EOF:
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
    try:
        parsed = _WholeParser(is_real=None, config=_CONFIG).parse(source)
    except (MemoryError, RecursionError, Malformed):
        raise
    except Exception as error:  # noqa: BLE001 - the grammar raises bare Exception for every syntax error
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
            r"\\?[a-zA-Z]+'?(?:_\{?\w+\}?)?(?:\s*\([^()]*\))?(?:\^\{-1\}\([^()]*\))?|f\^\{-1\}\([^()]*\)", text
        )
    )
