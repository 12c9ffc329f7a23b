"""Finds the final answer in a response: one pass over the text, whatever it contains."""

import re

FALLBACKS = ("none", "last_number")

_OPENING = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_BRACE = re.compile(r"\\[{}\\]|[{}]")
_LAST_NUMBER = re.compile(
    r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3}){1,40}|\d{1,400})(?:\.\d{1,400})?(?:/\d{1,400})?(?!\d)"
)
#: Between two boxes these words say that both together are the answer.
_CONNECTIVES = frozenset(
    (
        *("or", "and", "also", "either", "alternatively", "possibly", "maybe", "perhaps"),
        *("x", "y", "z", "n", "a", "b", "text", "mathrm", "quad", "qquad"),
    )
)
_GLUE_CHARS = re.compile(r"[\s$,;()\[\]{}\\/|*=&]+")
#: Longer prose between two boxes makes them two statements, of which the last counts.
_MAX_GLUE_CHARS = 60


def boxes(text: str) -> list[tuple[int, int, str]]:
    """All complete boxes that are in no other box, as `(start, end, content)`, in order.

    Braces are balanced, escaped braces ignored; a box that is never closed is no box. Linear time.
    """
    openings = {m.end() - 1: m.start() for m in _OPENING.finditer(text)}
    if not openings:
        return []
    outer: list[tuple[int, int, int]] = []
    stack: list[int] = []
    for match in _BRACE.finditer(text, min(openings)):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack:
            brace = stack.pop()
            if brace in openings:
                while outer and outer[-1][1] > brace:  # boxes inside this one
                    outer.pop()
                outer.append((openings[brace], brace, match.end()))
    return [(start, end, text[brace + 1 : end - 1]) for start, brace, end in outer]


def joined(between: str) -> bool:
    """True when the text between two boxes only connects them ("or", ", ", nothing)."""
    if len(between) > _MAX_GLUE_CHARS:
        return False
    return all(w.lower() in _CONNECTIVES for w in _GLUE_CHARS.split(between) if w)


def final_answer(text: str, fallback: str = "none") -> str | None:
    r"""The final answer as written, or None.

    `\boxed{5} or \boxed{7}` is the one answer `5 , 7`, so that naming several candidates does
    not win.

    Args:
        text: A response.
        fallback: `none`, or `last_number` to take the last number of a text without a complete box.
    """
    found = boxes(text)
    if not found:
        if fallback == "last_number":
            number = None
            for match in _LAST_NUMBER.finditer(text):
                number = match.group()
            return number
        return None
    start, _, content = found[-1]
    parts = [content.strip()]
    for left, end, earlier in reversed(found[:-1]):
        if not joined(text[end:start]):
            break
        start = left
        if earlier.strip() not in parts:
            parts.append(earlier.strip())
    answer = " , ".join(reversed(parts))
    return _OPENING.sub("{", answer).strip() or None  # a box in a box is only a frame
