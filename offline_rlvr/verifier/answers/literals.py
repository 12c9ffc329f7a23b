r"""Plain numbers as exact values: `57`, `-1,234.50`, `3/4`, `\frac{3}{4}`, `1.5e3`. No sympy."""

import re
from dataclasses import dataclass
from fractions import Fraction

#: A decimal matches a value it approximates to this relative error ...
RELATIVE_TOLERANCE = Fraction(1, 10**6)
#: ... or to the noise of double arithmetic when it has so many digits that it must come from there.
DOUBLE_DIGITS = 15
DOUBLE_NOISE = Fraction(4, 10**15)
#: Larger powers of ten are not written as literals by anyone who answers a question.
MAX_EXPONENT = 400
#: int() refuses longer strings; longer literals are put together from pieces.
CHUNK = 4000
MAX_DIGITS = 10_000

_DECIMAL = re.compile(
    r"([-+]?)(?:(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d*))?|\.(\d+))(?:[eE]([-+]?\d{1,4}))?", re.ASCII
)
_FRACTION = re.compile(
    r"([-+]?)(?:\\[dtc]?frac\s*\{\s*([-+]?\d+)\s*\}\s*\{\s*([-+]?\d+)\s*\}|(\d+)\s*/\s*(\d+))",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Literal:
    """A number as written.

    Attributes:
        value: Its exact value.
        step: The unit in its last place when it was written with a decimal point or
            exponent, else None.
        digits: Significant digits written.
    """

    value: Fraction
    step: Fraction | None = None
    digits: int = 0


def literal(text: str) -> Literal | None:
    """Read a whole string as a plain number, or None."""
    text = text.strip().strip("$").strip().removesuffix(".").replace("\u2212", "-")
    if not text or len(text) > MAX_DIGITS:
        return None
    if match := _DECIMAL.fullmatch(text):
        return _decimal(match)
    if match := _FRACTION.fullmatch(text):
        sign, top, bottom, plain_top, plain_bottom = match.groups()
        denominator = to_int(bottom or plain_bottom)
        if denominator == 0:
            return None
        value = Fraction(to_int(top or plain_top), denominator)
        return Literal(-value if sign == "-" else value)
    return None


def _decimal(match: re.Match[str]) -> Literal | None:
    sign, whole, fraction, bare_fraction, exponent = match.groups()
    whole = (whole or "").replace(",", "")
    fraction = fraction or bare_fraction or ""
    power = int(exponent or 0)
    if abs(power) > MAX_EXPONENT:
        return None
    scale = Fraction(10) ** (power - len(fraction))
    value = to_int((whole + fraction) or "0") * scale
    if sign == "-":
        value = -value
    if not fraction and exponent is None:
        return Literal(value)
    return Literal(value, scale, len((whole + fraction).lstrip("0")))


def to_int(digits: str) -> int:
    """`int(digits)` without the interpreter's limit of 4300 digits."""
    if len(digits) <= CHUNK:
        return int(digits)
    sign = -1 if digits[0] == "-" else 1
    digits = digits.lstrip("+-")
    value = 0
    for start in range(0, len(digits), CHUNK):
        piece = digits[start : start + CHUNK]
        value = value * 10 ** len(piece) + int(piece)
    return sign * value


def same_literal(a: Literal, b: Literal) -> bool:
    """Equality of two plain numbers; exact, but a decimal may be a rounding of the other."""
    if a.value == b.value:
        return True
    coarse = max((x for x in (a, b) if x.step is not None), key=lambda x: x.step or 0, default=None)
    return coarse is not None and approximates(
        abs(a.value - b.value), max(abs(a.value), abs(b.value)), coarse
    )


def approximates(distance: Fraction, size: Fraction, decimal: Literal) -> bool:
    """True when a decimal this far from a value of this size is that value, rounded or cut.

    It must be off by less than one unit in its last place and by at most 1e-6 of the value. So
    0.333333 is
    1/3 and 1.41421356 the square root of 2, while 1234567.88 is not 1234567.89, nor 2.0000001
    the number 2.
    """
    assert decimal.step is not None
    if decimal.digits >= DOUBLE_DIGITS and distance <= DOUBLE_NOISE * size:
        return True
    return distance < decimal.step and distance <= RELATIVE_TOLERANCE * size
