"""Counting: when a condition on a metric is met, and when an anchor is refreshed by it.

Everything here is a function of the metrics of updates 1, 2, ... in order; `state` and `restore`
carry the counts through a checkpoint.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from offline_rlvr.config.condition import Condition

#: The metrics of one update, or a row of `metrics.jsonl`.
Metrics = Mapping[str, Any]


class Watch:
    """Counts the measurements in a row for which a condition holds.

    Args:
        condition: The condition.
    """

    def __init__(self, condition: Condition):
        self.condition = condition
        self.streak = 0

    def met(self, metrics: Metrics) -> dict[str, Any] | None:
        """Count an update, unless it did not measure the metric; the terms when that was enough."""
        value = metrics.get(self.condition.metric)
        if not is_number(value):
            return None
        self.streak = self.streak + 1 if self.condition.holds(value) else 0
        if self.streak < self.condition.in_a_row:
            return None
        return {**self.condition.terms, "value": value}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"terms": self.condition.terms, "streak": self.streak}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on counting, or begin anew where the condition is another one than before."""
        same = state is not None and state["terms"] == self.condition.terms
        self.streak = state["streak"] if state is not None and same else 0


class Schedule:
    """When an anchor is refreshed: every so many updates, and when a condition was met.

    Args:
        refresh_every: Updates; None: never by itself.
        refresh_when: The condition, counted from the last refresh; None: there is none.

    Attributes:
        first: First update after the last refresh; None before the first refresh.
        over: Whether the condition was met since then.
    """

    def __init__(self, refresh_every: int | None, refresh_when: Condition | None = None):
        self.refresh_every = refresh_every
        self.watch = Watch(refresh_when) if refresh_when else None
        self.first: int | None = None
        self.over = False

    def due(self, update: int) -> bool:
        """Whether the anchor is refreshed before this update."""
        if self.first is None or self.over:
            return True
        return self.refresh_every is not None and update >= self.first + self.refresh_every

    def begin(self, update: int) -> None:
        """The anchor is refreshed before this update."""
        self.first, self.over = update, False
        if self.watch is not None:
            self.watch.streak = 0

    def met(self, metrics: Metrics) -> dict[str, Any] | None:
        """The terms of the condition when an update meets it."""
        met = self.watch.met(metrics) if self.watch else None
        self.over = met is not None
        return met

    def window(self, first: int, last: int) -> range:
        """The updates that a refresh before `first` scores, of a run that ends with `last`."""
        return range(first, min(first + (self.refresh_every or last), last + 1))

    def windows(self, last: int) -> list[range]:
        """Every window that a run that ends with `last` may come to have."""
        apart = 1 if self.watch else self.refresh_every or last
        return [self.window(first, last) for first in range(1, last + 1, apart)]

    def __str__(self) -> str:
        every = self.refresh_every
        parts = [f"refreshed every {every} updates"] if every else []
        if self.watch:
            parts.append(f"{'' if every else 'refreshed '}when {in_words(self.watch.condition)}")
        return ", and ".join(parts) or "fixed"

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        watch = self.watch.state() if self.watch else None
        return {"first": self.first, "over": self.over, "watch": watch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """What `state` gave."""
        self.first, self.over = int(state["first"]), state.get("over", False)
        if self.watch is not None:
            self.watch.restore(state.get("watch"))


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a metric was measured: `metrics.jsonl` has null where a value was not finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def in_words(condition: Condition) -> str:
    """`weights/ess is below 0.001 in 20 measurements in a row`."""
    sign = "below" if condition.below is not None else "above"
    threshold = condition.terms[sign]
    times = f" in {condition.in_a_row} measurements in a row" if condition.in_a_row > 1 else ""
    return f"{condition.metric} is {sign} {threshold:g}{times}"
