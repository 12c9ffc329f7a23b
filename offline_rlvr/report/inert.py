"""Text of a model or a file, made safe to show.

HTML escaping is the template's work. This is about what survives it: control characters (a
terminal obeys escape sequences), and direction overrides, which make text read differently from
what it is. They become visible marks.
"""

import re

#: Controls except tab and newline, DEL, C1 controls, line separators, direction and zero-width
#: marks, byte-order mark, lone surrogates (not encodable).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
#: Where U+2400 "symbol for null" and its sisters start.
_CONTROL_PICTURES = 0x2400


def inert(text: str) -> str:
    """The same text with every control character replaced by a visible mark (ESC becomes ␛)."""
    return _UNSAFE.sub(_visible, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`inert`, and without line breaks or tabs: for a terminal line or a table cell."""
    return " ".join(inert(text).split())


def shortened(text: str, head: int = 1000, tail: int = 600) -> str:
    """Long text with its middle left out: the answer stands at the end."""
    left_out = len(text) - head - tail
    if left_out <= 100:
        return text
    return f"{text[:head]}\n[... {left_out:,} characters left out ...]\n{text[-tail:]}"


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"
