"""Counting in a row, and windows that end early."""

from offline_rlvr.config.condition import Condition
from offline_rlvr.trainer.watch import Schedule, Watch


def condition(times, **threshold):
    return Condition.model_validate({"metric": "m", "for": times, **threshold})


def met(counter, values):
    """Numbers, from 1, of the values at which it was met."""
    rows = [{"m": value} if value is not None else {} for value in values]
    return [n for n, row in enumerate(rows, start=1) if counter.met(row)]


def test_in_a_row():
    assert met(Watch(condition(2, below=1.0)), [0.5, 0.5, 2, 0.5, 1.0, 0.5, 0.1, 0.1]) == [2, 7, 8]
    assert met(Watch(condition(1, above=1.0)), [0.5, 1.0, 1.5]) == [3]


def test_an_update_without_a_measurement_neither_counts_nor_breaks_the_row():
    nan, inf = float("nan"), float("inf")
    values = [2, None, nan, inf, "2", 2, None, 0, 2, 2]
    assert met(Watch(condition(2, above=1.0)), values) == [6, 10]


def test_the_terms_and_the_value_are_told():
    watch = Watch(condition(1, above=1.0))
    assert watch.met({"m": 2.5}) == {"metric": "m", "above": 1.0, "for": 1, "value": 2.5}


def test_a_restored_count_goes_on_unless_the_condition_is_another():
    watch = Watch(condition(3, above=1.0))
    met(watch, [2, 2])
    same, other = Watch(condition(3, above=1.0)), Watch(condition(3, above=0.5))
    same.restore(watch.state())
    other.restore(watch.state())
    assert (met(same, [2]), met(other, [2])) == ([1], [])


def refreshes(schedule, values):
    found = []
    for update, value in enumerate(values, start=1):
        if schedule.due(update):
            schedule.begin(update)
            found.append(update)
        schedule.met({"m": value})
    return found


def test_refreshed_regularly_early_or_never():
    assert refreshes(Schedule(3), [0] * 8) == [1, 4, 7]
    assert refreshes(Schedule(None), [0] * 8) == [1]
    early = condition(2, above=1.0)
    assert refreshes(Schedule(4, early), [0, 2, 2, 0, 0, 0, 0, 0, 0]) == [1, 4, 8]
    assert refreshes(Schedule(None, early), [2] * 7) == [1, 3, 5, 7]
    # The count begins anew at a regular refresh, too.
    assert refreshes(Schedule(3, early), [0, 0, 2, 2, 0, 0]) == [1, 4]


def test_windows_that_may_come():
    assert Schedule(3).windows(7) == [range(1, 4), range(4, 7), range(7, 8)]
    assert Schedule(None).windows(3) == [range(1, 4)]
    early = condition(1, above=1.0)
    assert Schedule(2, early).windows(3) == [range(1, 3), range(2, 4), range(3, 4)]
    assert Schedule(None, early).windows(3) == [range(1, 4), range(2, 4), range(3, 4)]


def test_a_schedule_goes_on_from_a_checkpoint():
    early = condition(2, above=1.0)
    schedule = Schedule(5, early)
    schedule.begin(1)
    for value in (2, 2):
        schedule.met({"m": value})
    again = Schedule(5, early)
    again.restore(schedule.state())
    assert again.due(3)
    earlier_versions = Schedule(5)
    earlier_versions.restore({"first": 1})
    assert [earlier_versions.due(update) for update in (5, 6)] == [False, True]
