r"""LaTeX of an answer -> one plain spelling: no delimiters or spacing, `\frac{a}{b}`, `\le`, ..."""

import re

_UNICODE = {
    "\u2212": "-", "\u2013": "-", "\u00d7": r"\times ", "\u00f7": r"\div ", "\u22c5": r"\cdot ",
    "\u00b7": r"\cdot ", "\u03c0": r"\pi ", "\u221e": r"\infty ", "\u222a": r"\cup ",
    "\u2229": r"\cap ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2208": r"\in ",
    "\u00b1": r"\pm ", "\u00b0": r"^\circ ", "\u2205": r"\emptyset ", "\u00a0": " ", "\u2009": " ",
    "\u03b8": r"\theta ", "\u00b2": "^{2}", "\u00b3": "^{3}", "\u2032": "'", "\u221a": r"\sqrt ",
}  # fmt: skip
_UNICODE_TABLE = str.maketrans(_UNICODE)

_DIGIT_GAP = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|,\\!|~|\{\\,\})+\s*(?=\d{3}(?!\d))")
_SPACING = re.compile(r"\\(?:[,;:!>]|quad(?![a-z])|qquad(?![a-z])|hspace\*?\{[^{}]*\}|(?=\s))|~")
_SIZES = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\s*\.?(?=\s*[\\()\[\]|{}.<>/]|$)"
)
_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|tt|boldmath|normalsize|"
    r"tiny|small|large|Large|LARGE|huge|Huge)(?![a-zA-Z])|\\(?:text)?color\s*\{[^{}]*\}"
)
_WORD_DOLLAR = re.compile(r"\\(?:text|mathrm|mbox)\s*\{\s*\\?\$\s*\}")
_DELIMITERS = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_WORD_BOX = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt|up)?|mbox|mathrm|mathbf|mathit|operatorname\*?|mathsf|"
    r"boldsymbol|bm|underline|emph)\s*\{"
)
_SYNONYMS = [
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:leq|leqslant|leqq)(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|geqq)(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!=|\\neq(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\(?:lbrace|lgroup)(?![a-zA-Z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace|rgroup)(?![a-zA-Z])"), r"\\}"),
    (re.compile(r"\\(?:lbrack)(?![a-zA-Z])"), "["),
    (re.compile(r"\\(?:rbrack)(?![a-zA-Z])"), "]"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\[lr]?vert(?![a-zA-Z])"), "|"),
    (re.compile(r"\\(?:varnothing|emptyset)(?![a-zA-Z])"), r"\\emptyset "),
    (re.compile(r"\\degrees?(?![a-zA-Z])|\^ *(?:\{ *\\circ *\}|\\circ(?![a-zA-Z]))"), r"^\\circ "),
    (re.compile(r"\\(?:lor|vee)(?![a-zA-Z])"), r"\\text{or}"),
    (re.compile(r"\\(?:land|wedge)(?![a-zA-Z])"), r"\\text{and}"),
    (re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf)(?![a-zA-Z])"), r"\\infty "),
    (re.compile(r"\\ast(?![a-zA-Z])"), "*"),
    (re.compile(r"\\(?:cdotp|bullet)(?![a-zA-Z])"), r"\\cdot "),
    (re.compile(r"\\log_(?:e(?![a-zA-Z])|\{\s*e\s*\})"), r"\\ln "),
    (re.compile(r"\\(?:colon)(?![a-zA-Z])|\{\s*:\s*\}"), ":"),
    (re.compile(r"\\(?:tan|cot|sec|csc|sin|cos)h?(?=[a-zA-Z])"), r"\g<0> "),
]  # fmt: skip
_FRAC_ARGUMENTS = re.compile(r"\\frac\s*(?![{\s])(\d|[a-zA-Z]|\\[a-zA-Z]+)")
_SQRT_ARGUMENT = re.compile(r"\\sqrt\s*(?:\[([^\[\]]*)\])?\s*(?![\[{\s])(\d|[a-zA-Z]|\\[a-zA-Z]+)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?\s*(\d+)\s*\}?")
_ELLIPSIS = re.compile(
    r"(\d*)\.(\d*?)(\d{1,6}?)\3\3+\s*(?:\\(?:l|c)?dots(?![a-zA-Z])|\.\.\.|\u2026)|(\d*)\.(\d*)\((\d+)\)"
)
_PLAIN_MIXED = re.compile(r"(?<![\d.,/}a-zA-Z)^_])(\d+) +(\d{1,9})/(\d{1,9})(?![\d.,])")
_MIXED = re.compile(r"(?<![\d.}a-zA-Z)^_])(\d+)\s*(\\frac\{\d+\}\{\d+\})")
_POWER_E = re.compile(r"(?<![\w\\}])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d{1,4})(?![\w.])")
#: `= 5` and `\approx 5` say 5.
_LEADING = re.compile(r"^(?:=|\\approx(?![a-zA-Z]))\s*")
_SPACED_NUMBER = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|\{[^{}]*\}|\([^()]*\))\s*\^\\circ ")


def clean(text: str) -> str:
    r"""One plain spelling of an answer or gold; the order of the steps matters.

    `\dfrac12` -> `\frac{1}{2}`, `12\,345` -> `12345`, `0.\overline{36}` -> `\frac{36}{99}`,
    `0.363636...` and `0.(36)` likewise, `2\frac13` and `2 1/3` -> `(2+\frac{1}{3})`,
    `1.5e3` -> `1.5\cdot 10^{3}`.
    """
    text = text.translate(_UNICODE_TABLE).replace("\n", " ")
    text = text.replace(r"\\", r"\newrow " if r"\begin" in text else "\\")  # doubled by escaping
    text = _DIGIT_GAP.sub("", text)
    text = _WORD_DOLLAR.sub(r"\\$", text).replace(r"\$", r"\usd ")
    text = _DELIMITERS.sub(" ", text)
    text = _STYLE.sub(" ", text)
    text = _SIZES.sub("", text)
    text = _SPACING.sub(" ", text)
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", _brace_arguments(text))
    text = _REPEATING.sub(_repeating, _ELLIPSIS.sub(_overlined, text))
    text = _POWER_E.sub(r"\1\\cdot 10^{\2}", text)
    text = _MIXED.sub(r"(\1+\2)", text)
    text = strip_braces(re.sub(r"\s+", " ", text).strip())
    text = _PLAIN_MIXED.sub(_plain_mixed, text)
    text = _LEADING.sub("", text)
    text = text.removesuffix(".").strip()
    if _SPACED_NUMBER.fullmatch(text):
        text = text.replace(" ", "")
    return strip_braces(text)


def _brace_arguments(text: str) -> str:
    r"""`\frac12`, `\frac 34`, `\frac9{19}`, `\frac{270}7`, `\sqrt2`, `\sqrt x` with braces."""
    text = re.sub(r"\\(frac|sqrt)\s+(?=[\d{a-zA-Z\\\[])", r"\\\1 ", text)
    text = _FRAC_ARGUMENTS.sub(r"\\frac{\1}", text)
    pieces = []
    position = 0
    for match in re.finditer(r"\\frac\s*\{", text):
        end = matching(text, match.end() - 1)
        if end is None:
            continue
        after = re.match(r"\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)", text[end + 1 :])
        if after and match.start() >= position:
            pieces += [text[position : end + 1], "{", after.group(1), "}"]
            position = end + 1 + after.end()
    text = "".join([*pieces, text[position:]])
    text = _SQRT_ARGUMENT.sub(lambda m: rf"\sqrt{'[' + m[1] + ']' if m[1] else ''}{{{m[2]}}}", text)
    return re.sub(r"\\(frac|sqrt)\s+(?=[{\[])", r"\\\1", text)


def _overlined(match: re.Match[str]) -> str:
    whole, fixed, period = match.group(1, 2, 3) if match[3] else match.group(4, 5, 6)
    return rf"{whole}.{fixed}\overline{{{period}}}"


def _plain_mixed(match: re.Match[str]) -> str:
    """`2 1/2` is a mixed number; `12 345/100` is something else."""
    whole, top, bottom = match.groups()
    return rf"({whole}+\frac{{{top}}}{{{bottom}}})" if int(top) < int(bottom) else match.group()


def _repeating(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    if len(whole) + len(fixed) + len(period) > 200:
        return match.group()
    bottom = (10 ** len(period) - 1) * 10 ** len(fixed)
    top = int((whole or "0") + fixed + period) - int((whole or "0") + fixed)
    return rf"\frac{{{top}}}{{{bottom}}}"


def degrees_to_radians(text: str) -> str:
    r"""`\sin 30^\circ` -> `\sin (30\cdot\frac{\pi}{180})`."""
    return _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text + " ").strip()


def matching(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; escaped braces do not count."""
    depth = 0
    index = start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return None


def strip_braces(text: str) -> str:
    """`{{5}}` -> `5`."""
    depth = 0
    while text[depth : depth + 1] == "{" and text[-1 - depth : len(text) - depth] == "}":
        depth += 1
    while depth:  # the outermost pairs that really belong together
        if matching(text, 0) == len(text) - 1:
            text = text[1:-1].strip()
            depth -= 1
        else:
            break
    return text


def unwrap_words(text: str) -> str:
    r"""`\text{28}` -> `28`, `\mathrm{cm}` -> `cm`: every word box replaced by its content."""
    while match := _WORD_BOX.search(text):
        end = matching(text, match.end() - 1)
        if end is None:
            return text
        text = text[: match.start()] + " " + text[match.end() : end] + " " + text[end + 1 :]
    return re.sub(r"\s+", " ", text).strip()


def word_boxes(text: str) -> list[tuple[int, int, str]]:
    r"""All outermost `\text{...}`-like pieces as `(start, end, content)`."""
    found = []
    position = 0
    while match := _WORD_BOX.search(text, position):
        end = matching(text, match.end() - 1)
        if end is None:
            break
        found.append((match.start(), end + 1, text[match.end() : end].strip()))
        position = end + 1
    return found
