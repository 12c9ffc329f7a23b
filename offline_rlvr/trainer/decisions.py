"""What a training decides from its own metrics: to end, to refresh an anchor, to adapt its loss.

Decisions are a pure function of the metrics of updates 1, 2, ... (in one process or many: of those
of the first), so a resumed run comes to the same ones, and so does `run verify` from
`metrics.jsonl`. Each is written into the ledger line of the update after which it was taken; what
an evaluation decides, into the first line after it:

    {"decision": "stop", "metric": "weights/ess", "value": 0.0009, "below": 0.001, "for": 20}
    {"decision": "refresh_reference", "metric": "reference/k3", "value": 0.06, "above": 0.05, ...}
    {"decision": "adapt_objective", "adaptive_horizon": 8}
    {"decision": "keep_best", "checkpoint": 40, "accuracy": 0.652}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from offline_rlvr.config import Config
from offline_rlvr.config.condition import Condition
from offline_rlvr.diagnostics.catalogue import describe
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.trainer.watch import Metrics, Schedule, Watch, in_words, is_number

if TYPE_CHECKING:
    from offline_rlvr.objectives.interface import Objective

Decision = dict[str, Any]

STOP, KEEP = "stop", "keep_best"
#: Metrics on which nothing may depend, and why.
UNFIT = {
    "time/update_s": "two runs of the same job differ in it",
    "train/micro_batch_tokens": "two runs of the same job may differ in it",
    "drift/noise_floor": "it is measured once, in update 1",
}


class Decider:
    """Takes the decisions of a training, update by update.

    Args:
        stop_when: When the training ends early.
        schedules: By name of the anchor.
        objective: Of the first update.

    Attributes:
        objective: Of the next update.
    """

    def __init__(
        self,
        stop_when: Condition | None,
        schedules: Mapping[str, Schedule],
        objective: "Objective",
    ):
        self.stop = Watch(stop_when) if stop_when else None
        self.schedules = schedules
        self.objective = objective
        self._adapted: dict[str, Any] = {}

    def __call__(self, metrics: Metrics) -> list[Decision]:
        """What the metrics of an update decide."""
        decisions: list[Decision] = []
        if self.stop is not None and (met := self.stop.met(metrics)):
            decisions.append({"decision": STOP, **met})
        for name, schedule in self.schedules.items():
            if met := schedule.met(metrics):
                decisions.append({"decision": f"refresh_{name}", **met})
        numbers = {key: value for key, value in metrics.items() if is_number(value)}
        changes = self.objective.adapted(numbers)
        if changes:
            self._adapt(changes)
            decisions.append({"decision": "adapt_objective", **changes})
        return decisions

    def replayed(self, metrics: Metrics) -> list[Decision]:
        """The same from a row of `metrics.jsonl`, with the refreshes before its update."""
        for schedule in self.schedules.values():
            if schedule.due(metrics["update"]):
                schedule.begin(metrics["update"])
        return self(metrics)

    def require(self, metrics: Metrics) -> None:
        """Errors as `require_measured`, of every condition.

        Args:
            metrics: Of the first update.
        """
        watches = [self.stop, *(schedule.watch for schedule in self.schedules.values())]
        for watch in watches:
            require_measured(watch.condition if watch else None, metrics)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; the anchors keep the state of their schedules."""
        return {"stop": self.stop.state() if self.stop else None, "objective": self._adapted}

    def restore(self, state: Mapping[str, Any]) -> None:
        """What `state` gave; nothing in checkpoints of earlier versions."""
        if self.stop is not None:
            self.stop.restore(state.get("stop"))
        self._adapt(state.get("objective", {}))

    def _adapt(self, changes: Mapping[str, Any]) -> None:
        self._adapted |= changes
        objective: Any = self.objective
        self.objective = replace(objective, **changes)


def require_measured(condition: Condition | None, metrics: Iterable[str]) -> None:
    """Refuse a condition on what a training does not measure.

    Args:
        condition: The condition; None: there is none.
        metrics: What it measures. The first update measures all of it.

    Raises:
        ConfigError: With what it does measure.
    """
    if condition is not None and condition.metric not in metrics:
        measured = sorted({*metrics} - UNFIT.keys() - {"update"})
        raise ConfigError(
            f"{condition.metric} is not measured in this training, so `{in_words(condition)}` "
            "would never hold; nothing was trained",
            hint=f"measured are: {', '.join(measured)}",
        )


def schedules_of(config: Config, objective: "Objective") -> dict[str, Schedule]:
    """The schedules of the anchors that the objective needs."""
    sections = {name: getattr(config, name) for name in sorted(objective.anchors)}
    return {name: Schedule(s.refresh_every, s.refresh_when) for name, s in sections.items()}


def check_conditions(config: Config) -> None:
    """Refuse conditions that nothing may depend on.

    Raises:
        ConfigError: An unknown metric, with near ones, or an unfit one; with file and line.
    """
    for place, condition in (
        (("train", "stop_when"), config.train.stop_when),
        (("reference", "refresh_when"), config.reference.refresh_when),
        (("old", "refresh_when"), config.old.refresh_when),
    ):
        if condition is None:
            continue
        where = f"{config.where(*place)}: {'.'.join(place)}"
        try:
            describe(condition.metric)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None
        if condition.metric in UNFIT:
            raise ConfigError(
                f"{where}: nothing may depend on {condition.metric}: {UNFIT[condition.metric]}",
                hint="weights/ess and drift/abs_log_ratio are what most people watch",
            )


def decisions_of(row: Mapping[str, Any]) -> list[Decision]:
    """The decisions in a ledger line.

    Raises:
        DataError: It holds something else there.
    """
    found = row.get("decisions", [])
    if not isinstance(found, list) or not all(isinstance(d, dict) for d in found):
        raise DataError(f"the ledger's update {row['update']} holds no decisions: {found!r}")
    return found


def decisions_in(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, Decision], ...]:
    """(update, decision) of every decision in a ledger, in order. Errors as `decisions_of`."""
    return tuple((row["update"], decision) for row in rows for decision in decisions_of(row))


def stopped_after(row: Mapping[str, Any], condition: Condition | None) -> Decision | None:
    """The decision by which a training ended after a ledger line.

    Args:
        row: The last line.
        condition: `train.stop_when` as it is now: a decision by other terms no longer binds.
    """
    for decision in decisions_of(row) if condition else []:
        if condition and decision == {**decision, "decision": STOP, **condition.terms}:
            return decision
    return None


def keep_best(update: int, accuracy: float) -> Decision:
    """To keep the checkpoint of an update for its held-out accuracy."""
    return {"decision": KEEP, "checkpoint": update, "accuracy": accuracy}


def best_kept(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """The update whose checkpoint was the last to be kept so, by the ledger."""
    kept = [d.get("checkpoint") for _, d in decisions_in(rows) if d.get("decision") == KEEP]
    return kept[-1] if kept else None


def justified(stop: Decision, rows: Sequence[Metrics]) -> bool:
    """Whether a decision to stop follows from its own terms and the metrics up to its update."""
    terms = {key: value for key, value in stop.items() if key not in ("decision", "value")}
    try:
        watch = Watch(Condition.model_validate(terms))
    except ValidationError:
        return False
    met = [watch.met(row) for row in rows][-1]
    return met is not None and stop == {"decision": STOP, **met}


def reason(decision: Decision) -> str:
    """`metric weights/ess, below 0.001, for 20, value 0.00081`."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in decision.items()
        if key != "decision"
    )


def told(decision: Decision) -> str:
    """`stop: metric weights/ess, below 0.001, for 20, value 0.00081`."""
    return f"{decision.get('decision')}: {reason(decision)}"
