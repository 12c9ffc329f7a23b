"""Is this constant (or function) equal to that one? Exact rationals, else many-digit numerics.

Nothing here expands or simplifies: `(x+1)^{3000}` is evaluated at points, `9^{9^{9}}` as a logarithm-sized
float, so the time is bounded by the size of the text and not of the value.
"""

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import mpmath
import sympy
from mpmath.libmp import ComplexResult, NoConvergence
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef

from offline_rlvr.verifier.answers.literals import Literal

#: Digits compared beyond the size of the numbers involved.
BASE_DIGITS = 60
#: More digits than this are not computed; equality that hangs on them stays undecided.
MAX_DIGITS = 4000
#: Guard digits lost to rounding.
GUARD = 20
#: Two precisions that agree to this relative size settle a value; a larger gap settles a difference.
STABLE = -30.0
#: Exact rationals up to this many bits.
MAX_BITS = 40_000
SAMPLES = 5
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
    return Fraction(int(mpmath.libmp.ifac(int(n))))


def _bits(number: Fraction) -> int:
    return number.numerator.bit_length() + number.denominator.bit_length()


_FUNCTIONS: dict[str, str] = {
    name: name
    for name in (
        "exp sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth sech csch "
        "asinh acosh atanh floor factorial binomial gamma re im conjugate"
    ).split()
} | {"ceiling": "ceil", "Abs": "fabs", "arg": "arg", "sign": "sign"}


#: One context for all (building one is slow); every evaluator sets its precision. One thread per worker.
_CONTEXT = mpmath.MPContext()
#: `i` is the imaginary unit wherever it stands in an answer.
_IMAGINARY = sympy.Symbol("i")


class Evaluator:
    """Evaluates an expression tree with `digits` decimal digits.

    Attributes:
        peak: Largest |log10| of any intermediate value, for judging what cancellation costs.
    """

    def __init__(self, digits: int, names: Mapping[Any, Fraction] | None = None):
        self.mp = _CONTEXT
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
        done = expr.doit()  # a sum, an integral, a limit: sympy's work, ended by the deadline if it is endless
        if done == expr or done.has(sympy.nan):
            raise Undecided(f"no value for {type(expr).__name__}")
        return self._value(done)

    def _power(self, base: Any, exponent: Any) -> Any:
        if abs(exponent) > MAX_POWER and base not in (0, 1, -1):
            raise Undecided("too large a power")
        return self.mp.power(base, exponent)


def same_constant(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Equality of two expressions without symbols.

    Raises:
        Undecided: Equal to `MAX_DIGITS` digits but more would be needed, or no value.
    """
    if a == b:
        return True
    if sympy.S.Infinity in (a, b) or sympy.S.NegativeInfinity in (a, b):
        return False
    exact_a, exact_b = rational(a), rational(b)
    if exact_a is not None and exact_b is not None:
        return exact_a == exact_b
    try:
        return _same_at(a, b, {})
    except Undefined as error:
        raise Undecided(str(error)) from error


def same_function(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Equality of two expressions with symbols, at several rational points to many digits.

    Raises:
        Undecided: Too few of the points have a value.
    """
    if a == b:
        return True
    names = sorted(free_names(a) | free_names(b), key=sympy.srepr)
    rng = random.Random("\n".join(map(sympy.srepr, names)))
    hits = 0
    for attempt in range(4 * SAMPLES):
        point = {name: _coordinate(rng, attempt) for name in names}
        try:
            if not _same_at(a, b, point):
                return False
            hits += 1
        except Undefined:
            continue
        if hits == SAMPLES:
            return True
    raise Undecided("no value at most points")


def constant_factor(a: sympy.Expr, b: sympy.Expr) -> float | None:
    """The non-zero constant c with a = c b as functions, as a float; None when there is none."""
    names = sorted(free_names(a) | free_names(b), key=sympy.srepr)
    rng = random.Random("\n".join(map(sympy.srepr, names)))
    factor = None
    hits = 0
    for attempt in range(4 * SAMPLES):
        x, y, _ = _both(a, b, BASE_DIGITS, {n: _coordinate(rng, attempt) for n in names})
        if x is None or y is None or x == 0 or y == 0:
            continue
        if factor is None:
            factor = x / y
        elif _gap(factor, x / y) > STABLE:
            return None
        hits += 1
        if hits == SAMPLES:
            return float(_CONTEXT.re(factor)) if abs(_CONTEXT.im(factor)) == 0 else None
    raise Undecided("no value at most points")


def real_close(expr: sympy.Expr, decimal: Literal, close: Callable[..., bool]) -> bool:
    """True when a written decimal approximates a constant; `close` is `literals.approximates`."""
    try:
        x = Evaluator(BASE_DIGITS).value(expr)
    except Undefined:
        return False
    if _CONTEXT.im(x) != 0 or not 1e-300 < abs(x) < 1e300:
        return False
    exact = Fraction(_CONTEXT.nstr(_CONTEXT.re(x), 50))
    return close(abs(exact - decimal.value), abs(exact), decimal)


def _coordinate(rng: random.Random, attempt: int) -> Fraction:
    """Positive and negative points of moderate size; every fourth try in (0, 1) for logarithms and roots."""
    if attempt % 4 == 3:
        return Fraction(rng.randint(100, 900), 1009)
    sign = 1 if attempt % 4 == 0 else rng.choice((-1, 1))
    return sign * (rng.randint(1, 4) + Fraction(rng.randint(100, 900), 1013))


def _same_at(a: sympy.Expr, b: sympy.Expr, point: Mapping[Any, Fraction]) -> bool:
    coarse, fine = [_both(a, b, digits, point) for digits in (BASE_DIGITS, 2 * BASE_DIGITS)]
    x, y, peak = fine
    if (x is None) != (y is None):
        return False
    if x is None or coarse[0] is None or coarse[1] is None:
        raise Undefined("neither has a value")
    drift = max(_gap(coarse[0], x), _gap(coarse[1], y))
    if drift < STABLE < _gap(x, y):
        return False
    digits = min(int(BASE_DIGITS + 2 * peak + 1), MAX_DIGITS)
    x, y, peak = _both(a, b, digits, point)
    if x is None or y is None:
        raise Undefined("a value at one precision only")
    if _gap(x, y, floor=1) > peak - digits + GUARD:
        return False
    if BASE_DIGITS + 2 * peak > MAX_DIGITS:
        raise Undecided(f"equal to {digits} digits")
    return True


def _both(
    a: sympy.Expr, b: sympy.Expr, digits: int, point: Mapping[Any, Fraction]
) -> tuple[Any, Any, float]:
    values = []
    peak = 0.0
    for expr in (a, b):
        evaluator = Evaluator(digits, point)
        try:
            values.append(evaluator.value(expr))
        except Undefined:
            values.append(None)
        peak = max(peak, evaluator.peak)
    return values[0], values[1], peak


def _gap(x: Any, y: Any, floor: int = 0) -> float:
    """log10 of |x - y| relative to the larger of |x|, |y| and `floor`."""
    gap = abs(x - y)
    if gap == 0:
        return float("-inf")
    return float(_CONTEXT.log10(gap / max(abs(x), abs(y), floor)))


def free_names(expr: sympy.Basic) -> set[Any]:
    """Symbols and applications of unknown functions, which count as one name each; `i` is no name."""
    if isinstance(expr, AppliedUndef):
        return {expr}
    if isinstance(expr, sympy.Symbol):
        return set() if expr == _IMAGINARY else {expr}
    if isinstance(expr, ExprWithLimits):  # bound variables are not free
        return set(expr.free_symbols)
    return set().union(*[free_names(arg) for arg in expr.args])
