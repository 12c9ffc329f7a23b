r"""Units, percent, currency around a number: `15\mbox{ cm}^2`, `\$36`, `45\%`, `30^\circ`."""

import re

from offline_rlvr.verifier.answers.latex import word_boxes

#: Spellings of one unit. Two known, different units make two answers different; an unknown or
#: missing
#: unit is not held against an answer (the question names it).
_UNITS = [
    "cm centimeter centimeters centimetre centimetres",
    "mm millimeter millimeters",
    "km kilometer kilometers kilometres",
    "m meter meters metre metres",
    "in inch inches",
    "ft foot feet",
    "yd yard yards",
    "mi mile miles",
    "g gram grams",
    "kg kilogram kilograms",
    "mg milligram milligrams",
    "lb lbs pound pounds",
    "oz ounce ounces",
    "s sec second seconds",
    "min minute minutes",
    "h hr hour hours",
    "day days",
    "week weeks",
    "month months",
    "year years",
    "usd dollar dollars",
    "cent cents",
    "degree degrees deg",
    "liter liters l litre litres",
    "ml milliliter milliliters",
    "gallon gallons",
    "mph",
    "kph",
    "percent",
    "unit units",
    "square",
    "rad radian radians",
    "euro euros",
    "penny pennies",
    "people",
    "student students",
    "point points",
    "way ways",
    "time times",
    "page pages",
    "apple apples",
    "book books",
    "pm",
    "am",
    "cubic",
    "hz",
    "n",
]
UNIT_OF = {word: group.split()[0] for group in _UNITS for word in group.split()}
_ANY_UNIT = frozenset(
    {"unit", "square", "cubic", "people", "student", "point", "way", "time", "page"}
)

_UNIT_TEXT = re.compile(r"[a-zA-Z][a-zA-Z .\-/^23]{0,60}")
_NOT_UNITS = frozenset(
    [
        "or",
        "and",
        "not",
        "if",
        "is",
        "maybe",
        "possibly",
        "else",
        "than",
        "for",
        "all",
        "except",
        "no",
        "none",
        "undefined",
    ]
)
_PLAIN_TAIL = re.compile(
    r"(.*[\d})])\s*((?:[a-zA-Z]{2,}|[gmhl])(?:[ /][a-zA-Z]+){0,3}(?:\^\{?[23]\}?)?)"
)
_HALF_OF_DAY = re.compile(r"\b([ap])\.\s?m\b\.?")
_POWER_TAIL = re.compile(r"\s*\^\s*\{?\s*([23])\s*\}?\s*")
_CURRENCY = re.compile(r"^(-?)\s*(?:\\usd|\\pounds|\\euro|[\u20ac\u00a3])\s*")


def strip_unit(text: str) -> tuple[str, str | None]:
    """Take a trailing unit or leading currency away: the rest, and the unit's name or None."""
    match = _CURRENCY.match(text)
    if match:
        return match.group(1) + text[match.end() :], "usd"
    if text.endswith(("^\\circ", "^\\circ C", "^\\circ F")):
        head = text[: text.rindex("^\\circ")].strip()
        if head and "\\circ" not in head and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", head):
            return head, "degree"
    pieces = word_boxes(text)
    if pieces:
        start, end, content = pieces[-1]
        tail = text[end:]
        power = _POWER_TAIL.fullmatch(tail)
        if start > 0 and (not tail.strip() or power) and is_unit_text(content):
            return text[:start].strip(), canonical(content, power.group(1) if power else None)
    plain = _PLAIN_TAIL.fullmatch(text)
    if plain and all(w.lower() in UNIT_OF for w in re.findall(r"[a-zA-Z]+", plain.group(2))):
        return plain.group(1).strip(), canonical(plain.group(2), None)
    return text, None


def is_unit_text(content: str) -> bool:
    """True for text that can stand behind a number without changing it."""
    words = re.findall(r"[a-zA-Z]+", content.lower())
    return bool(_UNIT_TEXT.fullmatch(content)) and not _NOT_UNITS.intersection(words)


def canonical(content: str, power: str | None) -> str | None:
    """`square centimeters`, `cm^2` and `cm` with power 2 -> `cm^2`; None for an unknown unit."""
    text = _HALF_OF_DAY.sub(r"\1m", content.lower())
    inner = re.search(r"\^\{?([23])\}?|([23])$", text)
    if inner:
        power = inner.group(1) or inner.group(2)
    words = re.findall(r"[a-z]+", text)
    if not words or any(w not in UNIT_OF for w in words) or "/" in text:
        return None
    if "square" in words or "sq" in words:
        power = "2"
    if "cubic" in words:
        power = "3"
    names = [UNIT_OF[w] for w in words if UNIT_OF[w] not in _ANY_UNIT]
    if len(names) != 1:
        return None
    return names[0] + (f"^{power}" if power else "")


def strip_percent(text: str) -> tuple[str, bool]:
    r"""`45\%`, `45%`, `45 \text{ percent}` -> `("45", True)`."""
    for tail in ("\\%", "%"):
        if text.endswith(tail):
            return text[: -len(tail)].strip(), True
    match = re.search(r"(?:\\text\s*\{\s*percent\s*\}|(?<=\d)\s*percent)$", text)
    return (text[: match.start()].strip(), True) if match else (text, False)
