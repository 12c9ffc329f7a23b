"""Small strings with enormous values, among normal answers."""

import time

import pytest

HOSTILE = {
    r"9^{9^{9}}": "7",
    r"99999999!": "7",
    r"\binom{10^9}{5\cdot10^8}": "7",
    r"(x+1)^{3000}": "(x+2)^{3000}",
    "(" * 400 + "5" + ")" * 400: "7",
    "9" * 5000: "7",
    r"\boxed{" * 2000: "7",
    r"\frac{" * 300 + "1" + "}{2}" * 300: "7",
    r"\sqrt{" * 300 + "1" + "}" * 300: "7",
    "{" * 900 + "}" * 900: "7",
    "1+" * 900 + "1": "7",
    "x^" * 900 + "2": "7",
    "," * 1900: "7",
    r"\pm" * 900: "7",
    "x<" * 600 + "y": "7",
    r"(0,1)\cup" * 200 + "(0,1)": "7",
    "!" * 1900: "7",
    "5" + "!" * 30: "7",
    r"\int_0^1 x^{x^x} dx": "7",
    "\x00\ud800\x1b[31m": "7",
    r"\input{/etc/passwd}": "7",
    "__import__('os').system('true')": "7",
}
ENDLESS = r"\sum_{k=1}^{10^{9}}k^{k}"


def test_hostile_answers_are_never_correct_and_quick(verifier):
    start = time.perf_counter()
    verdicts = verifier.score([(gold, rf"\boxed{{{text}}}") for text, gold in HOSTILE.items()])
    assert time.perf_counter() - start < 25
    statuses = {text[:20]: v.status for text, v in zip(HOSTILE, verdicts, strict=True)}
    assert "correct" not in statuses.values()
    for text in (r"9^{9^{9}}", "99999999!", r"(x+1)^{3000}", "9" * 20, "(" * 20):
        assert statuses[text] == "incorrect"


def test_what_is_equal_stays_equal_at_any_size(verifier):
    pairs = [
        ("5", "(" * 400 + "5" + ")" * 400),
        ("9" * 5000, "9" * 5000),
        (r"(x+1)^{3000}", r"(1+x)^{3000}"),
        (r"10^{4999}", "1" + "0" * 4999),
        (r"\sqrt{10^{400}}", r"10^{200}"),
    ]
    got = [v.status for v in verifier.score([(g, rf"\boxed{{{a}}}") for g, a in pairs])]
    assert got == ["correct"] * len(pairs)


def test_a_difference_beyond_reach_is_unscored_not_wrong(verifier):
    (verdict,) = verifier.score([(r"9^{9^{9}}", r"\boxed{9^{9^{9}}+1}")])
    assert (verdict.status, verdict.reward) == ("error", None)


def test_a_thousand_normal_answers_are_unharmed(verifier):
    normal = [(str(n), rf"\boxed{{{n + n % 2}}}") for n in range(1, 801)]
    normal += [
        (rf"{n}\sqrt{{2}}", rf"\boxed{{\sqrt{{{2 * n * n + n % 2}}}}}") for n in range(1, 201)
    ]
    mixed = list(normal)
    for place, (text, gold) in enumerate(HOSTILE.items()):
        mixed.insert(place * 40, (gold, rf"\boxed{{{text}}}"))
    mixed.insert(500, ("7", rf"\boxed{{{ENDLESS}}}"))
    start = time.perf_counter()
    verdicts = verifier.score(mixed)
    assert time.perf_counter() - start < 40
    by_item = dict(zip(mixed, verdicts, strict=True))
    expected = ["correct" if n % 2 == 0 else "incorrect" for n in range(1, 801)]
    expected += expected[:200]
    assert [by_item[item].status for item in normal] == expected
    assert by_item[("7", rf"\boxed{{{ENDLESS}}}")].status == "timeout"
    assert len(verifier._sandbox.worker_pids()) <= 2


@pytest.mark.parametrize("exponent", [40, 200, 900])
def test_near_misses_far_beyond_double_precision(verifier, exponent):
    gold = rf"\sqrt{{10^{{{2 * exponent}}}+1}}"
    (verdict,) = verifier.score([(gold, rf"\boxed{{10^{{{exponent}}}}}")])
    assert verdict.status == "incorrect"
