"""Is this constant, or this function, equal to that one? Exactly, or to many digits at points."""

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import sympy

from offline_rlvr.verifier.answers.evaluate import (
    CONTEXT,
    Evaluator,
    Undecided,
    Undefined,
    free_names,
    rational,
)
from offline_rlvr.verifier.answers.literals import Literal, approximates

#: Digits compared beyond the size of the numbers involved.
BASE_DIGITS = 60
#: More digits than this are not computed; equality that hangs on them stays undecided.
MAX_DIGITS = 4000
#: Guard digits lost to rounding.
GUARD = 20
#: What may stand behind an "approximately equal" sign: log10 of 1 %.
ROUGH = -2.0
#: Two precisions that agree to this relative size settle a value; a larger gap settles a
#: difference.
STABLE = -30.0
SAMPLES = 5


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
            return float(CONTEXT.re(factor)) if abs(CONTEXT.im(factor)) == 0 else None
    raise Undecided("no value at most points")


def real_close(expr: sympy.Expr, decimal: Literal) -> bool:
    """True when a written decimal approximates a constant, see `literals.approximates`."""
    try:
        x = Evaluator(BASE_DIGITS).value(expr)
    except Undefined:
        return False
    if CONTEXT.im(x) != 0 or not 1e-300 < abs(x) < 1e300:
        return False
    exact = Fraction(str(CONTEXT.nstr(CONTEXT.re(x), 50)))
    return approximates(abs(exact - decimal.value), abs(exact), decimal)


def roughly(exact: sympy.Expr, rounded: sympy.Expr) -> bool:
    """True when two constants differ by at most 1 %."""
    if free_names(exact) or free_names(rounded):
        return False
    x, y, _ = _both(exact, rounded, BASE_DIGITS, {})
    return x is not None and y is not None and _gap(x, y) <= ROUGH


def _coordinate(rng: random.Random, attempt: int) -> Fraction:
    """Points of moderate size and either sign; every fourth in (0, 1) for logarithms and roots."""
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
    # At a random point 4000 equal digits settle it; constants may be chosen to be that close.
    if BASE_DIGITS + 2 * peak > MAX_DIGITS and not point:
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
    return float(CONTEXT.log10(gap / max(abs(x), abs(y), floor)))
