r"""The shape of an answer: scalar, list, point, interval, set, relation, matrix, ratio, words.

Only the outer shape is read here, by scanning for top-level separators; the scalars inside stay
text until
`scalars.py` hands them to the LaTeX grammar. Every character of the answer ends up in the tree.
"""

import re

from offline_rlvr.verifier.answers.latex import strip_braces, unwrap_words, word_boxes
from offline_rlvr.verifier.answers.nodes import (
    BaseNumber,
    Either,
    Malformed,
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
from offline_rlvr.verifier.answers.units import strip_percent, strip_unit

#: Deeper nesting is not an answer; it also bounds the recursion.
MAX_DEPTH = 40


_RELATIONS = ("=", "<", ">", "\\le", "\\ge", "\\ne", "\\in", "\\approx")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_OPEN = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
_CLOSERS = frozenset({")", "]", "}", "\\}"})
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BASE = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?\s*(?:\\text\{)?\s*(\d{1,2}|[a-z]{3,8})\s*\}?\s*\}?")
_NAMES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_BASE_NAMES = {name: base for base, name in enumerate(_NAMES, start=2)} | {"sixteen": 16}
_WORDS = re.compile(r"\(?[a-zA-Z][a-zA-Z .'\-]*\)?")
_ENVIRONMENT = re.compile(
    r"\\begin\{([pbvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL
)
_PLAIN_CONNECTIVE = re.compile(r"(?<![a-zA-Z\\])(or|and)(?![a-zA-Z])")


def tokens(text: str) -> list[tuple[str, int, int]]:
    """`(token, start, depth before it)`; a control word is one token. Brackets may mix: `(3,4]`."""
    found = []
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _CLOSERS:
            depth = max(depth - 1, 0)
        found.append((token, match.start(), depth))
        if token in _OPEN:
            depth += 1
    return found


def split(text: str, separators: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Split at top-level separator tokens. Returns the parts and the separators between them."""
    parts, between = [], []
    last = 0
    for token, start, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[last:start].strip())
            between.append(token)
            last = start + len(token)
    parts.append(text[last:].strip())
    return parts, between


def connectives(text: str) -> str:
    r"""`\text{ or }` and a bare `or` become the tokens `\OR` and `\AND`."""
    for start, end, content in reversed(word_boxes(text)):
        word = content.strip(" ,").lower()
        if word in ("or", "and"):
            text = f"{text[:start]} \\{word.upper()} {text[end:]}"
    if re.search(r"[\d)\]}=<>]", text):
        text = _PLAIN_CONNECTIVE.sub(lambda m: f" \\{m.group().upper()} ", text)
    return text


def parse(text: str, *, as_list: bool = False, depth: int = 0) -> Node:
    """Read the whole of a cleaned text.

    Args:
        text: From `latex.clean`.
        as_list: Read `1,000` as two numbers rather than one.
        depth: Nesting so far.

    Raises:
        Malformed: Empty, unbalanced or too deep.
    """
    if depth > MAX_DEPTH:
        raise Malformed("is nested too deeply")
    text = strip_parentheses(strip_braces(text.strip()))
    if not text:
        raise Malformed("is empty")
    if max(d for _, _, d in tokens(text)) > MAX_DEPTH:
        raise Malformed("is nested too deeply")
    words = as_words(text)
    if words is not None:
        return words
    pieces = word_boxes(text)
    if len(pieces) == 1 and pieces[0][:2] == (0, len(text)):  # \\text{5 cm}
        return parse(pieces[0][2], as_list=as_list, depth=depth + 1)
    text = connectives(text)
    parts, between = split(text, ("\\OR", "\\AND"))
    if between:
        return _joined(parts, between, depth)
    if not as_list and (number := _grouped_number(text)) is not None:
        return number
    parts, between = split(text, (",", ";"))
    if between:
        return _bare_list(parts, depth)
    return _single(text, depth)


def _grouped_number(text: str) -> Scalar | None:
    r"""`58,500`, `\usd 1,000`, `10,000 \text{ people}`."""
    head, percent = strip_percent(text)
    head, unit = strip_unit(head)
    if _GROUPED.fullmatch(head):
        return Scalar(head.replace(",", ""), percent, unit)
    return None


def _joined(parts: list[str], between: list[str], depth: int) -> Node:
    parts = [p.strip(" ,;") for p in parts]
    parts = [p for p in parts if p]
    nodes = [parse(p, depth=depth + 1) for p in parts]
    if any(is_inequality(node) for node in nodes):
        if "\\OR" in between and "\\AND" in between:
            raise Malformed("joins parts with both or and and")
        return Either(tuple(nodes), every="\\AND" in between)
    return flat_list(nodes)


def _bare_list(parts: list[str], depth: int) -> Node:
    if not parts[-1]:  # a trailing comma
        parts = parts[:-1]
    nodes = [parse(p, depth=depth + 1) for p in parts]
    if len(nodes) == 1:
        return nodes[0]
    if all(is_inequality(node) for node in nodes):
        return Either(tuple(nodes), every=False)
    return flat_list(nodes)


def flat_list(nodes: list[Node]) -> Seq:
    """A bare list whose bare-list members are merged in, as from `1 \\pm 2, 5`."""
    items: list[Node] = []
    for node in nodes:
        items += node.items if isinstance(node, Seq) and not node.open else [node]
    return Seq(tuple(items))


def _single(text: str, depth: int) -> Node:
    if match := _ENVIRONMENT.fullmatch(_unframed(text)):
        return _matrix(match.group(2), depth)
    parts, between = split(text, _RELATIONS)
    if between:
        return Relation(tuple(between), tuple(parse(p, depth=depth + 1) for p in parts))
    for operator in ("\\cup", "\\cap", "\\setminus"):
        names = (operator, "\\backslash") if operator == "\\setminus" else (operator,)
        parts, between = split(text, names)
        if between:
            return SetOp(operator, tuple(parse(p, depth=depth + 1) for p in parts))
    if text == "\\emptyset":
        return Seq((), "\\{", "\\}")
    bracketed = _bracketed(text, depth)
    if bracketed is not None:
        return bracketed
    parts, between = split(text, (":",))
    if between:
        return Ratio(tuple(parse(p, depth=depth + 1) for p in parts))
    return _scalar(text, depth)


def _bracketed(text: str, depth: int) -> Node | None:
    found = tokens(text)
    first, last = found[0][0], found[-1][0]
    if first not in ("(", "[", "\\{") or last not in (")", "]", "\\}"):
        return None
    if (first == "\\{") != (last == "\\}"):
        return None
    if any(d == 0 for _, start, d in found[1:-1] if start > 0):
        return None
    inner = text[len(first) : len(text) - len(last)].strip()
    if not inner:
        return Seq((), first, last)
    parts, between = split(inner, (",", ";"))
    if first == "(" and last == ")" and not between:
        return None
    nodes = [parse(p, depth=depth + 1) for p in parts]
    return Seq(flat_list(nodes).items, first, last)


def _unframed(text: str) -> str:
    r"""`[\begin{matrix}...\end{matrix}]` without the brackets; anything else unchanged."""
    inner = text[1:-1].strip()
    framed = text[0] + text[-1] == "[]" and inner.count(r"\begin") == 1
    return inner if framed and _ENVIRONMENT.fullmatch(inner) else text


def _matrix(body: str, depth: int) -> Node:
    body = body.strip().removesuffix(r"\newrow")
    rows = [re.split(r"(?<!\\)&", row) for row in re.split(r"\\newrow(?:\s*\[[^\]]*\])?", body)]
    if len({len(row) for row in rows}) != 1:
        raise Malformed("has matrix rows of unequal length")
    return MatrixNode(tuple(tuple(parse(c, depth=depth + 1) for c in row) for row in rows))


def _scalar(text: str, depth: int) -> Node:
    if match := _BASE.fullmatch(text):
        written = match.group(2)
        base = int(written) if written.isdigit() else _BASE_NAMES.get(written, 0)
        if match.group(1)[0].isdigit() and 2 <= base <= 36:
            return BaseNumber(match.group(1).lower(), base)
    text, percent = strip_percent(text)
    text, unit = strip_unit(text)
    if not percent:
        text, percent = strip_percent(text)
    for sign, other in (("\\pm", "\\mp"), ("\\mp", "\\pm")):
        if sign in text:
            plus = text.replace("\\pm", "+").replace("\\mp", "-")
            minus = text.replace("\\pm", "-").replace("\\mp", "+")
            both = (plus, minus) if sign == "\\pm" or other in text else (minus, plus)
            return Seq(tuple(Scalar(s.lstrip("+ "), percent, unit) for s in both))
    text = strip_parentheses(strip_braces(unwrap_words(text)))
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    if not text:
        raise Malformed("is empty")
    return Scalar(text, percent, unit)


def as_words(text: str) -> Words | None:
    r"""`\text{(B)}`, `\text{east}`, `Evelyn` -> Words; None for anything with mathematics in it.

    A bare word needs three letters (or be a single capital A-E, a choice); shorter ones are
    products.
    """
    boxes = word_boxes(text)
    plain = unwrap_words(text).strip(" .")
    if not _WORDS.fullmatch(plain) or set(plain.lower().split()) & {"or", "and"}:
        return None
    bare = plain.strip("()").strip()
    if boxes or re.search(r"[a-zA-Z]{3,}", bare) or re.fullmatch(r"[A-E]", bare):
        return Words(" ".join(bare.lower().rstrip(".").split()))
    return None


def strip_parentheses(text: str) -> str:
    """`((5))` -> `5`: outer pairs of parentheses without a top-level comma inside. Linear time."""
    stack: list[int] = []
    partner: dict[int, int] = {}
    commas: set[int] = set()  # opening positions with a comma directly inside
    for token, start, _ in tokens(text):
        if token in _OPEN:
            stack.append(start)
        elif token in _CLOSERS:
            if not stack:
                return text
            partner[stack.pop()] = start
        elif token in (",", ";") and stack:
            commas.add(stack[-1])
    left, right = 0, len(text) - 1
    while left < right and text[left] == "(" and text[right] == ")" and partner.get(left) == right:
        if left in commas:
            break
        left, right = left + 1, right - 1
        while left < right and text[left] == " ":
            left += 1
        while left < right and text[right] == " ":
            right -= 1
    return text[left : right + 1]
