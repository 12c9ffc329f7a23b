"""The final answer of a response, and plain numbers read without a parser."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_rlvr.verifier.answers.extract import boxes, final_answer
from offline_rlvr.verifier.answers.literals import literal, same_literal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed {4}", "4"),
        ("\\boxed\n{4}", "4"),
        (r"\fbox{4}", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\{1}", r"\{1"),
        (r"\boxed{5}. Wait: \boxed{7}.", "7"),
        (r"\boxed{5} and then, after a long while, I saw that it is \boxed{7}", "7"),
        (r"\boxed{5} or \boxed{7}", "5 , 7"),
        (r"\boxed{5}, \boxed{7}", "5 , 7"),
        (r"\boxed{5}$ or possibly $\boxed{7}", "5 , 7"),
        (r"$x=\boxed{2}$ or $x=\boxed{3}$", "2 , 3"),
        (r"\boxed{7} \boxed{7}", "7"),
        (r"\boxed{1}, \boxed{2}, and \boxed{3}", "1 , 2 , 3"),
        (r"\boxed{4} and \boxed{", "4"),
        (r"\boxed{4", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        ("", None),
        ("the answer is 4", None),
        (r"\boxed 4", None),
    ],
)
def test_last_complete_box(text, answer):
    assert final_answer(text) == answer


def test_a_box_in_a_box_is_only_a_frame():
    assert literal(final_answer(r"\boxed{\boxed{4}}").strip("{}")).value == 4


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first 3, then 4.", "4"),
        ("it costs $1,234.50 in total", "1,234.50"),
        ("about -7/2 of it", "-7/2"),
        ("x2 and y3", None),
        ("nothing", None),
        (r"3 but \boxed{5} and 9", "5"),
    ],
)
def test_last_number_only_when_asked_for(text, answer):
    assert final_answer(text, "last_number") == answer


@given(st.text(alphabet="\\boxed{}fn 12,or$.", max_size=200))
def test_extraction_never_fails_and_boxes_are_balanced(text):
    final_answer(text, "last_number")
    ends = 0
    for start, end, content in boxes(text):
        assert ends <= start < end
        assert text[end - 1] == "}"
        assert text[:end].endswith(content + "}")
        ends = end


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 20_000,
        r"\boxed{" * 20_000 + "5" + "}" * 20_000,
        "{" * 100_000,
        "9" * 100_000,
        "1," * 50_000,
        r"\boxed{5} or " * 20_000,
        "1" + ",000" * 30_000,
        r"\boxed" + " " * 100_000,
    ],
    ids=range(8),
)
def test_extraction_is_quick_on_hostile_text(text):
    start = time.perf_counter()
    final_answer(text, "last_number")
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("57", 57),
        ("-1,234.50", Fraction(-2469, 2)),
        ("$7$", 7),
        ("42.", 42),
        (".5", Fraction(1, 2)),
        ("-0.0", 0),
        ("3/4", Fraction(3, 4)),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        ("1.5e3", 1500),
        ("007", 7),
        ("\u22125", -5),
    ],
)
def test_literals(text, value):
    assert literal(text).value == value


def test_a_literal_longer_than_int_allows():
    assert literal("9" * 5000).value == 10**5000 - 1
    assert literal("-0." + "1" * 5000).value * 9 * 10**5000 == 1 - 10**5000


@pytest.mark.parametrize(
    "text", ["", "x", "1,23", "1/0", r"\frac{1}{0}", "0.333...", "1e999999999", "3 4", "1.2.3", "²"]
)
def test_not_literals(text):
    assert literal(text) is None


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("0.00000012", "0.00000034", False),
        ("1234567.89", "1234567.88", False),
        ("0.6666666667", "2/3", True),
        ("3.33333", "10/3", True),
        ("0.33", "1/3", False),
        ("0.3", "0.30000000000000004", True),
        ("2", "2.0000001", False),
        ("0", "0.0000001", False),
        ("1000000007", "1000000008", False),
        ("9" * 5000, "9" * 4999 + "8", False),
    ],
)
def test_exact_numbers_exactly_and_decimals_relatively(a, b, same):
    assert same_literal(literal(a), literal(b)) is same
    assert same_literal(literal(b), literal(a)) is same


@given(st.fractions(max_denominator=10**6))
def test_a_fraction_equals_its_own_spelling(value):
    assert literal(f"{value.numerator}/{value.denominator}").value == value
    assert literal(rf"\frac{{{value.numerator}}}{{{value.denominator}}}").value == value


@given(st.integers(), st.integers())
def test_integers_are_equal_only_to_themselves(a, b):
    assert same_literal(literal(str(a)), literal(str(b))) is (a == b)
