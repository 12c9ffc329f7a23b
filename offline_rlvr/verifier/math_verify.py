r"""`verifier.name: math_verify`: mathematical equality of the last box with the gold answer.

Contract:

- the gold answer is understood whole, or the problem is refused (`gold_unparseable`);
- the answer is the last complete `\boxed{}`; boxes joined by nothing but "or", "and", a comma are
one answer;
- exact numbers are compared exactly; a decimal matches a value it approximates to 6 digits and to
its last
  written digit;
- a list, an equation, an inequality or a hedge does not win by containing the gold;
- an answer that is not understood, or absurdly long, is incorrect; a verifier that fails says so
instead.

Plain numbers are compared right here (a regular expression and `Fraction`); all else goes to the
workers,
where LaTeX is parsed with the grammar of math-verify (latex2sympy2_extended).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

from offline_rlvr.errors import ConfigError, ResourceError
from offline_rlvr.records import Verdict
from offline_rlvr.verifier.answers.extract import FALLBACKS, final_answer
from offline_rlvr.verifier.answers.literals import literal, same_literal
from offline_rlvr.verifier.base import SandboxSettings, Verifier, nearest
from offline_rlvr.verifier.sandbox import Outcome

#: Longer text in a verdict helps nobody and fills the disk.
SHOWN_CHARS = 200
LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy", "mpmath")
#: Raised whenever a verdict of this package's own code changes.
CONTRACT_VERSION = "2"


@dataclass(frozen=True, kw_only=True)
class MathVerifySettings(SandboxSettings):
    """Settings of the mathematical verifier.

    Attributes:
        fallback: Where the answer is when no box is complete: `none` (status
            `no_answer`) or `last_number`.
        max_answer_chars: A longer answer is no answer to a question: incorrect, unless
            it is a plain number.
    """

    fallback: str = "none"
    max_answer_chars: int = 2000

    def __post_init__(self):
        super().__post_init__()
        if self.fallback not in FALLBACKS:
            raise ConfigError(
                f"verifier.fallback is {self.fallback!r}; it must be one of: "
                f"{', '.join(FALLBACKS)}.",
                hint=nearest(str(self.fallback), FALLBACKS, "verifier.fallback: "),
            )
        if isinstance(self.max_answer_chars, bool) or not isinstance(self.max_answer_chars, int):
            raise ConfigError("verifier.max_answer_chars must be a whole number.")
        if not 16 <= self.max_answer_chars <= 100_000:
            raise ConfigError(
                f"verifier.max_answer_chars is {self.max_answer_chars}; it must be 16 to 100000."
            )


class MathVerify(Verifier):
    """Scores by mathematical equality."""

    name: ClassVar[str] = "math_verify"
    Settings = MathVerifySettings

    def __init__(self, settings: MathVerifySettings):
        self._fallback = settings.fallback
        self._max_answer_chars = settings.max_answer_chars
        self._tested = False
        super().__init__(settings)

    def _worker_target(self) -> str:
        return "offline_rlvr.verifier.answers.judge:Judge"

    def _worker_settings(self) -> dict[str, Any]:
        return {"max_answer_chars": self._max_answer_chars}

    def _versions(self) -> dict[str, str]:
        return {"contract": CONTRACT_VERSION, **{name: version(name) for name in LIBRARIES}}

    def __enter__(self):
        super().__enter__()
        try:
            self._self_test()
        except BaseException:
            self.close()
            raise
        return self

    def score(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """See `Verifier.score`."""
        answers = [final_answer(text, self._fallback) for _, text in items]
        pairs = [(gold, answer) for (gold, _), answer in zip(items, answers, strict=True)]
        verdicts = {pair: quick_verdict(*pair) for pair in dict.fromkeys(pairs)}
        hard = [pair for pair, verdict in verdicts.items() if verdict is None]
        for pair, outcome in zip(hard, self._run(hard), strict=True):
            verdicts[pair] = to_verdict(*pair, outcome)
        found = [verdicts[pair] for pair in pairs]
        return [verdict for verdict in found if verdict is not None]

    def check_gold(self, golds: Sequence[str]) -> list[str | None]:
        """See `Verifier.check_gold`."""
        hard = [gold for gold in dict.fromkeys(golds) if literal(gold) is None]
        reasons: dict[str, str | None] = {}
        for gold, outcome in zip(hard, self._run([(gold, None) for gold in hard]), strict=True):
            if outcome.failure is not None:
                reasons[gold] = f"{outcome.failure} while parsing {gold[:SHOWN_CHARS]!r}"
            elif outcome.value[0] == "gold_unparseable":
                reasons[gold] = outcome.value[1]
        return [reasons.get(gold) for gold in golds]

    def _run(self, pairs: Sequence[tuple[str, str | None]]) -> list[Outcome]:
        if not pairs:
            return []
        self._self_test()
        return self._sandbox.run(pairs)

    def _self_test(self) -> None:
        if self._tested:
            return
        right, wrong = self._sandbox.run([("$1$", "1"), ("$1$", "2")])
        if (right.value or [None])[0] != "correct" or (wrong.value or [None])[0] != "incorrect":
            raise ResourceError(
                f"The verifier's self-test failed: 1 == 1 gave {right}, 1 == 2 gave {wrong}.",
                hint="check the installed math-verify, latex2sympy2_extended and sympy versions",
            )
        self._tested = True


def quick_verdict(gold: str, answer: str | None) -> Verdict | None:
    """The verdict when both sides are plain numbers, else None: a worker must look."""
    value = literal(gold)
    if value is None:
        return None
    if answer is None:
        return Verdict("no_answer", shown(gold))
    other = literal(answer)
    if other is None:
        return None
    status = "correct" if same_literal(value, other) else "incorrect"
    return Verdict(status, shown(gold), shown(answer))


def to_verdict(gold: str, answer: str | None, outcome: Outcome) -> Verdict:
    """A worker's word as a verdict."""
    shown_answer = None if answer is None else shown(answer)
    if outcome.failure is not None:
        return Verdict(outcome.failure, shown(gold), shown_answer)  # pyright: ignore[reportArgumentType]
    return Verdict(outcome.value[0], shown(gold), shown_answer)


def shown(text: str) -> str:
    """Text for people, cut to a bearable length."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


VERIFIER = MathVerify
