"""Did held-out accuracy change? Said in one sentence, for page and terminal alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from offline_rlvr.evaluation import Evaluation, Interval, bootstrap_interval
from offline_rlvr.evaluation.intervals import paired_values
from offline_rlvr.numerics.pass_at_k import powers_of_two
from offline_rlvr.report.record import RunRecord
from offline_rlvr.trainer.decisions import reason

#: Sums of shares miss an exact 0 by about this.
ROUNDING = 1e-12
Kind = Literal["rise", "fall", "none", "open"]


@dataclass(frozen=True)
class Change:
    """One accuracy before and after training, over the problems measured both times.

    Attributes:
        metric: `mean@32`, `pass@8`, ...
        before, after: Means over those problems.
        difference: after - before, paired by problem.
    """

    metric: str
    before: float
    after: float
    difference: Interval

    @property
    def kind(self) -> Kind:
        """See `direction`."""
        return direction(self.difference)

    @property
    def ends(self) -> str:
        """`[10.2, 13.5]`, in points."""
        return ends(self.difference)

    def words(self) -> str:
        """`+11.9 points, 95 % interval [10.2, 13.5]`."""
        d = self.difference
        gain = f"{points(d.value, sign=True)} points"
        if math.isnan(d.low):
            return f"{gain}, no interval from {d.problems} problem"
        return f"{gain}, 95 % interval {self.ends}"


@dataclass(frozen=True)
class Comparison:
    """A held-out set before training (update 0) and after the latest evaluated update."""

    before: Evaluation
    after: Evaluation

    @property
    def changes(self) -> list[Change]:
        """mean@n, then pass@k for each k that both evaluations allow."""
        n = min(self.before.n, self.after.n)
        means = _change(_mean_name([self]), [(self.before.means(), self.after.means())])
        passes = [
            _change(f"pass@{k}", [(self.before.passes(k), self.after.passes(k))])
            for k in powers_of_two(n)
        ]
        return [change for change in (means, *passes) if change is not None]


def compare(run: RunRecord) -> list[Comparison]:
    """One comparison for each set that was evaluated before training and after it."""
    return [
        Comparison(results[0], results[-1])
        for results in run.sets().values()
        if results[0].update == 0 and results[-1].update > 0
    ]


def overall(comparisons: Sequence[Comparison]) -> Change | None:
    """mean@n over the problems of all sets, each problem weighing the same."""
    pairs = [(c.before.means(), c.after.means()) for c in comparisons]
    return _change(_mean_name(comparisons), pairs) if pairs else None


def verdict(run: RunRecord) -> tuple[Kind, str]:
    """What kind of result this is, and the sentence that says it."""
    comparisons = compare(run)
    change = overall(comparisons)
    if change is None:
        return "open", _without_comparison(run)
    names = " + ".join(c.before.name for c in comparisons)
    where = f"{names}, {change.difference.problems:,} problems"
    start, end = percent(change.before), percent(change.after)
    updates = {c.after.update for c in comparisons}
    when = f" after update {max(updates)}" if updates != {run.planned} else ""
    if change.kind in ("rise", "fall"):
        verb = "rose" if change.kind == "rise" else "fell"
        sentence = f"Held-out {change.metric} {verb} from {start} to {end}{when}"
    elif change.kind == "none":
        sentence = f"No difference shown in held-out {change.metric}: {start} before, {end}{when}"
        sentence += "" if when else " after"
    else:
        sentence = f"Held-out {change.metric} was {start} before and {end}{when or ' after'}"
    return change.kind, f"{sentence}: {change.words()} ({where})."


def ending(run: RunRecord) -> str:
    """Drift, K3 and ESS at the end, with the noise floor to read drift against."""
    drift = run.series("drift/abs_log_ratio")
    if not len(drift):
        return "Drift was not measured: no update has been applied."
    k3, ess = run.series("drift/k3_behavior_policy").last, run.series("weights/ess").last
    floor = run.first("drift/noise_floor")
    beside = f" (noise floor {number(floor)})" if floor is not None else ""
    of, responses = "", run.responses_in_ess
    if ess is not None and responses:
        of = f" ({ess * responses:,.0f} of {responses:,} responses)"
    return (
        f"On the groups of update {drift.updates[-1]}, before its step: "
        f"drift {number(drift.last)} nats per token{beside}, "
        f"K3 {number(k3)}, ESS {number(ess)}{of}."
    )


def missing(run: RunRecord) -> list[str]:
    """What this run does not have (yet), in plain words."""
    notes = []
    if run.planned is None:
        notes.append("run.json does not say how many updates were planned.")
    elif run.ended is not None and run.applied < run.planned:
        notes.append(
            f"The run was stopped by train.stop_when after update {run.applied:,} of "
            f"{run.planned:,} ({reason(run.ended)})."
        )
    elif not run.finished:
        notes.append(
            f"The run is not finished: {run.applied:,} of {run.planned:,} updates applied."
        )
    for name, results in run.sets().items():
        if results[0].update > 0:
            notes.append(f"{name} was not evaluated before training (update 0).")
        elif results[-1].update == 0:
            notes.append(f"{name} was evaluated before training only.")
        elif results[-1].update < run.applied:
            notes.append(f"The latest evaluation of {name} is of update {results[-1].update}.")
        notes += _unscored(name, results)
    if not run.evaluations:
        notes.append("No held-out evaluation yet.")
    return notes


def direction(difference: Interval) -> Kind:
    """`none` while the interval holds 0; `open` when there is no interval."""
    if math.isnan(difference.low):
        return "open"
    if difference.low > ROUNDING:
        return "rise"
    return "fall" if difference.high < -ROUNDING else "none"


def ends(difference: Interval) -> str:
    """The interval's ends in points: `[10.2, 13.5]`."""
    if math.isnan(difference.low):
        return "none"
    return f"[{points(difference.low)}, {points(difference.high)}]"


def percent(share: float | None) -> str:
    """0.531 -> `53.1 %`."""
    return "not measured" if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def points(difference: float, *, sign: bool = False) -> str:
    """A difference of shares in percentage points: 0.119 -> `11.9`; tiny ones keep two digits."""
    value = 100 * difference if abs(difference) > ROUNDING else 0.0
    digits = 1 if value == 0 or abs(value) >= 0.05 else 2
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"


def number(value: float | None) -> str:
    """Three significant digits, for values of any size."""
    if value is None or math.isnan(value):
        return "not measured"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:.2e}"


def _change(
    metric: str, pairs: Sequence[tuple[dict[str, float], dict[str, float]]]
) -> Change | None:
    differences = [paired_values(before, after) for before, after in pairs]
    difference = bootstrap_interval(*differences)
    if difference.problems == 0:
        return None
    starts = np.concatenate(
        [[value for key, value in before.items() if key in after] for before, after in pairs]
    )
    start = float(starts[~np.isnan(np.concatenate(differences))].mean())
    return Change(metric, start, start + difference.value, difference)


def _mean_name(comparisons: Sequence[Comparison]) -> str:
    sizes = {n for c in comparisons for n in (c.before.n, c.after.n)}
    return f"mean@{sizes.pop()}" if len(sizes) == 1 else "mean reward"


def _without_comparison(run: RunRecord) -> str:
    if not run.evaluations:
        return "No verdict: held-out problems were not evaluated."
    latest = [results[-1] for results in run.sets().values()]
    found = "; ".join(
        f"{e.name} mean@{e.n} {percent(e.summary()[f'mean@{e.n}']['value'])} at update {e.update}"
        for e in latest
    )
    return f"No verdict: no set was evaluated both before and after training ({found})."


def _unscored(name: str, results: Sequence[Evaluation]) -> list[str]:
    counts = [
        f"{e.unscored:,} of {e.rewards.size:,} at update {e.update}" for e in results if e.unscored
    ]
    if not counts:
        return []
    return [
        f"{name}: not every response could be scored ({'; '.join(counts)}); left out, not wrong."
    ]
