"""Values of expression trees: exact rationals where that is cheap, else many-digit floats.

Nothing here expands or simplifies: `(x+1)^{3000}` is evaluated at a point, `9^{9^{9}}` as a float
with a
large exponent, so the time is bounded by the size of the text and not by that of the value.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from mpmath.libmp import ComplexResult, NoConvergence, ifac
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef

#: Exact rationals up to this many bits.
MAX_BITS = 40_000
MAX_POWER = 10**15


class Undecided(Exception):
    """Neither equality nor its opposite could be established."""


class Undefined(Exception):
    """The expression has no value here (a pole, 0/0, an unknown function)."""


def rational(expr: sympy.Basic) -> Fraction | None:
    """Exact value if the tree is made of rationals and small powers, else None."""
    if isinstance(expr, sympy.Rational):
        return Fraction(int(expr.p), int(expr.q))
    if isinstance(expr, sympy.Float):
        return Fraction(str(expr))
    if isinstance(expr, sympy.UnevaluatedExpr):
        return rational(expr.args[0])
    if not isinstance(expr, sympy.Add | sympy.Mul | sympy.Pow | sympy.factorial):
        return None
    parts = [rational(arg) for arg in expr.args]
    numbers = [p for p in parts if p is not None]
    if len(numbers) != len(parts):
        return None
    if isinstance(expr, sympy.Pow):
        return _rational_power(*numbers)
    if isinstance(expr, sympy.factorial):
        return _rational_factorial(numbers[0])
    total = Fraction(0 if isinstance(expr, sympy.Add) else 1)
    for number in numbers:
        total = total + number if isinstance(expr, sympy.Add) else total * number
        if _bits(total) > MAX_BITS:
            return None
    return total


def _rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        return None
    if _bits(base) * abs(exponent.numerator) > MAX_BITS:
        return None
    return base**exponent.numerator


def _rational_factorial(n: Fraction) -> Fraction | None:
    if n.denominator != 1 or not 0 <= n <= 1000:
        return None
    return Fraction(int(ifac(int(n))))


def _bits(number: Fraction) -> int:
    return number.numerator.bit_length() + number.denominator.bit_length()


#: sympy class name -> mpmath function.
_FUNCTIONS: dict[str, str] = {
    name: name
    for name in (
        *("exp", "sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth"),
        *("asin", "acos", "atan", "acot", "asec", "acsc", "asinh", "acosh", "atanh", "sech"),
        *("csch", "floor", "factorial", "binomial", "gamma", "re", "im", "conjugate", "arg"),
    )
} | {"ceiling": "ceil", "Abs": "fabs", "sign": "sign"}


#: One context for all (building one is slow); every evaluator sets its precision. One thread
#: per worker.
CONTEXT = mpmath.MPContext()
#: `i` is the imaginary unit wherever it stands in an answer.
_IMAGINARY = sympy.Symbol("i")


class Evaluator:
    """Evaluates an expression tree with `digits` decimal digits.

    Attributes:
        peak: Largest |log10| of any intermediate value, for judging what cancellation costs.
    """

    def __init__(self, digits: int, names: Mapping[Any, Fraction] | None = None):
        self.mp = CONTEXT
        self.mp.dps = digits
        self.names = names or {}
        self.peak = 0.0

    def value(self, expr: sympy.Basic) -> Any:
        """An mpf or mpc.

        Raises:
            Undefined: No value. Undecided: too large to handle.
        """
        try:
            result = self._value(expr)
        except (ZeroDivisionError, ValueError, ComplexResult) as error:
            raise Undefined(type(error).__name__) from error
        except (OverflowError, TypeError, NotImplementedError, NoConvergence) as error:
            raise Undecided(type(error).__name__) from error
        if not self.mp.isfinite(result):
            raise Undefined("not finite")
        return result

    def _value(self, expr: sympy.Basic) -> Any:
        if expr in self.names:
            return self._fraction(self.names[expr])
        exact = self._atom(expr)
        if exact is None:
            exact = self._compound(expr)
        magnitude = abs(exact)
        if magnitude:
            self.peak = max(self.peak, abs(float(self.mp.log10(magnitude))))
        return exact

    def _fraction(self, number: Fraction) -> Any:
        return self.mp.mpf(number.numerator) / number.denominator

    def _atom(self, expr: sympy.Basic) -> Any:
        if isinstance(expr, sympy.Rational):
            return self.mp.mpf(int(expr.p)) / int(expr.q)
        if isinstance(expr, sympy.Float):
            return self._fraction(Fraction(str(expr)))
        if expr is sympy.pi:
            return +self.mp.pi
        if expr is sympy.E:
            return +self.mp.e
        if expr in (sympy.zoo, sympy.nan, sympy.oo, -sympy.oo):
            raise Undefined(str(expr))
        if expr is sympy.EulerGamma:
            return +self.mp.euler
        if expr is sympy.I or expr == _IMAGINARY:
            return self.mp.mpc(0, 1)
        return None

    def _compound(self, expr: sympy.Basic) -> Any:
        args = expr.args
        if isinstance(expr, sympy.Add):
            return self.mp.fsum(self._value(a) for a in args)
        if isinstance(expr, sympy.Mul):
            return self.mp.fprod([self._value(a) for a in args])
        if isinstance(expr, sympy.Pow):
            return self._power(self._value(args[0]), self._value(args[1]))
        if isinstance(expr, sympy.UnevaluatedExpr):
            return self._value(args[0])
        if isinstance(expr, sympy.log):
            return self.mp.log(*[self._value(a) for a in args])
        if isinstance(expr, sympy.Max | sympy.Min):
            values = [self._value(a) for a in args]
            return max(values) if isinstance(expr, sympy.Max) else min(values)
        if isinstance(expr, sympy.Mod):
            return self.mp.fmod(*[self._value(a) for a in args])
        name = _FUNCTIONS.get(type(expr).__name__)
        if name is not None:
            return getattr(self.mp, name)(*[self._value(a) for a in args])
        done = (
            expr.doit()
        )  # a sum, an integral, a limit: sympy's work, ended by the deadline if it is endless
        if done == expr or done.has(sympy.nan):
            raise Undecided(f"no value for {type(expr).__name__}")
        return self._value(done)

    def _power(self, base: Any, exponent: Any) -> Any:
        if abs(exponent) > MAX_POWER and base not in (0, 1, -1):
            raise Undecided("too large a power")
        return self.mp.power(base, exponent)


def free_names(expr: sympy.Basic) -> set[Any]:
    """Symbols and applications of unknown functions, one name each; `i` is no name."""
    if isinstance(expr, AppliedUndef):
        return {expr}
    if isinstance(expr, sympy.Symbol):
        return set() if expr == _IMAGINARY else {expr}
    if isinstance(expr, ExprWithLimits):  # bound variables are not free
        return set(expr.free_symbols)
    return set().union(*[free_names(arg) for arg in expr.args])
