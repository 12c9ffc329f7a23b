"""The sentence at the top says what the interval allows, and nothing more."""

import numpy as np
import pytest

from offline_rlvr.evaluation import Interval
from offline_rlvr.report.record import read_run
from offline_rlvr.report.verdict import (
    Change,
    compare,
    ending,
    missing,
    number,
    overall,
    percent,
    points,
    verdict,
)


def change(low, value, high, problems=500):
    return Change("mean@32", 0.531, 0.531 + value, Interval(value, low, high, problems))


@pytest.mark.parametrize(
    ("low", "value", "high", "kind"),
    [
        (0.102, 0.119, 0.135, "rise"),
        (-0.135, -0.119, -0.102, "fall"),
        (-0.01, 0.02, 0.05, "none"),
        (0.0, 0.02, 0.05, "none"),  # an interval that touches 0 shows nothing
        (-0.05, -0.02, 1e-17, "none"),
        (1e-17, 0.02, 0.05, "none"),
        (np.nan, 0.02, np.nan, "open"),
    ],
)
def test_kind_follows_the_interval(low, value, high, kind):
    assert change(low, value, high).kind == kind


def test_words():
    assert change(0.102, 0.119, 0.135).words() == "+11.9 points, 95 % interval [10.2, 13.5]"
    assert change(-0.135, -0.119, -0.102).words().startswith("-11.9 points, 95 % interval [-13.5")
    assert "no interval from 1 problem" in change(np.nan, 0.02, np.nan, 1).words()


@pytest.mark.parametrize(
    ("after", "kind", "expected"),
    [
        (0.70, "rise", "Held-out mean@8 rose from "),
        (0.30, "fall", "Held-out mean@8 fell from "),
        (0.50, "none", "No difference shown in held-out mean@8: "),
    ],
)
def test_sentence_for_rise_fall_and_nothing(make_run, after, kind, expected):
    run = make_run().identity().metrics(120).evaluation(0, 0.5).evaluation(120, after)
    found, sentence = verdict(read_run(run.path))
    assert found == kind
    assert sentence.startswith(expected)
    assert "95 % interval [" in sentence
    assert sentence.endswith("(arithmetic, 150 problems).")


def test_sentence_carries_the_paired_numbers(make_run):
    maker = make_run().identity().metrics().evaluation(0, 0.5).evaluation(120, 0.7)
    run = read_run(maker.path)
    before, after = (e.rewards.mean() for e in run.evaluations)
    _, sentence = verdict(run)
    assert f"from {100 * before:.1f} % to {100 * after:.1f} %: {100 * (after - before):+.1f}" in (
        sentence
    )


def test_an_unfinished_run_is_named(make_run):
    maker = make_run().identity().metrics(57).evaluation(0, 0.5).evaluation(40, 0.7)
    run = read_run(maker.path)
    assert "after update 40" in verdict(run)[1]
    assert "The run is not finished: 57 of 120 updates applied." in missing(run)
    assert "The latest evaluation of arithmetic is of update 40." in missing(run)


def test_sets_weigh_by_their_problems(make_run):
    maker = make_run().identity().metrics()
    for update, skill in ((0, 0.5), (120, 0.5)):
        maker.evaluation(update, skill, name="large", problems=300)
    for update, skill in ((0, 0.3), (120, 0.8)):
        maker.evaluation(update, skill, name="small", problems=30)
    comparisons = compare(read_run(maker.path))
    large, small = (c.changes[0].difference.value for c in comparisons)
    together = overall(comparisons)
    assert together is not None
    assert together.difference.value == pytest.approx((300 * large + 30 * small) / 330)
    assert together.difference.problems == 330
    assert together.after - together.before == pytest.approx(together.difference.value)


def test_no_verdict_without_both_evaluations(make_run):
    nothing = make_run("a").identity().metrics()
    assert verdict(read_run(nothing.path)) == (
        "open",
        "No verdict: held-out problems were not evaluated.",
    )
    only_after = make_run("b").identity().metrics().evaluation(120, 0.6)
    kind, sentence = verdict(read_run(only_after.path))
    assert kind == "open"
    assert "no set was evaluated both before and after" in sentence
    assert "arithmetic was not evaluated before training (update 0)." in missing(
        read_run(only_after.path)
    )


def test_unscored_responses_are_said(make_run):
    maker = make_run().identity().metrics()
    maker.evaluation(0, 0.5, unscored=0.1).evaluation(120, 0.5)
    note = next(note for note in missing(read_run(maker.path)) if "scored" in note)
    assert "of 1,200 at update 0" in note
    assert "update 120" not in note


def test_ending_has_the_last_numbers(make_run):
    run = read_run(make_run().identity().metrics().path)
    row = run.metrics[-1]
    text = ending(run)
    assert text.startswith("On the groups of update 120, before its step: drift ")
    assert number(row["drift/abs_log_ratio"]) in text
    assert "(noise floor 0.0038)" in text
    assert f"ESS {number(row['weights/ess'])} (8 of 2,048 responses)" in text


def test_the_window_of_ess_is_shorter_in_the_beginning(make_run):
    run = read_run(make_run().identity().metrics(3).path)
    assert run.responses_in_ess == 3 * 32 * 8


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.03219, "0.0322"),
        (12345.6, "12,346"),
        (6.99e-4, "6.99e-04"),
        (2e9, "2.00e+09"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_points_and_percent():
    assert points(0.0) == "0.0"
    assert points(0.0003, sign=True) == "+0.03"  # not "+0.0", which would look like nothing
    assert percent(0.5306) == "53.1 %"
    assert percent(None) == number(None) == "not measured"
