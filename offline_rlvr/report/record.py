"""What the report reads: one run folder, and nothing else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from offline_rlvr.errors import DataError
from offline_rlvr.evaluation import Evaluation, read_evaluations
from offline_rlvr.stream.journal import read_rows
from offline_rlvr.trainer.decisions import STOP, Decision, decisions_in, reason

#: Updates whose responses enter `weights/ess` (see `objectives.md`: the last 8).
ESS_WINDOW = 8


@dataclass(frozen=True)
class Series:
    """One metric over a run: [U] update numbers and values, missing values left out."""

    key: str
    updates: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def last(self) -> float | None:
        """The latest value, or None when it was never measured."""
        return float(self.values[-1]) if len(self.values) else None


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run as it lies on disk.

    Attributes:
        path: The folder.
        identity: `run.json`.
        config: Text of `config.yaml`; empty when there is none.
        metrics: Rows of `metrics.jsonl`, one per update.
        evaluations: By set and update.
        decisions: (update, decision) of every decision in the ledger, in order.
    """

    path: Path
    identity: Mapping[str, Any]
    config: str
    metrics: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Evaluation, ...]
    decisions: tuple[tuple[int, Decision], ...] = ()

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.identity.get("name") or self.path.name)

    @property
    def applied(self) -> int:
        """Updates applied so far."""
        return max((int(row["update"]) for row in self.metrics), default=0)

    @property
    def planned(self) -> int | None:
        """Updates to apply, when recorded: those of the plan, or `train.max_updates` if fewer."""
        limits = [self.part("plan").get("updates"), self._training.get("max_updates")]
        return min((limit for limit in limits if limit), default=None)

    @property
    def stop_when(self) -> str | None:
        """What may end it early, by its config: `metric weights/ess, below 0.001, for 20`."""
        condition = self._training.get("stop_when")
        if not isinstance(condition, dict):
            return None
        return reason({key: value for key, value in condition.items() if value is not None})

    @cached_property
    def _training(self) -> dict[str, Any]:
        """The config's `train`; empty without a config, or with one that a person has edited."""
        try:
            return dict(yaml.safe_load(self.config)["train"])
        except (yaml.YAMLError, KeyError, TypeError, ValueError):
            return {}

    @property
    def ended(self) -> Decision | None:
        """The decision by which `train.stop_when` ended it; None when it did not."""
        latest = [d for update, d in self.decisions if update == self.applied]
        return next((d for d in latest if d.get("decision") == STOP), None)

    @property
    def finished(self) -> bool:
        """Every planned update was applied, or the run has ended itself."""
        applied = self.planned is not None and self.applied >= self.planned
        return applied or self.ended is not None

    @property
    def group_size(self) -> int | None:
        """Responses per group (K), when the funnel says it."""
        counts = self.part("funnel").get("correct_per_group")
        return len(counts) - 1 if counts else None

    @property
    def responses_in_ess(self) -> int | None:
        """B of the latest `weights/ess`: responses of the last updates, when recorded."""
        groups, updates = self.part("plan").get("groups_per_update"), min(ESS_WINDOW, self.applied)
        return updates * groups * self.group_size if groups and self.group_size else None

    @property
    def trained_groups(self) -> int:
        """Groups that changed the weights so far."""
        plan = self.part("plan")
        trained = self.applied * int(plan.get("groups_per_update") or 0)
        return (
            min(trained, plan["groups"]) if plan.get("groups") else trained
        )  # a short last update

    def part(self, key: str) -> dict[str, Any]:
        """A block of `run.json`; empty when it is not there."""
        value = self.identity.get(key)
        return dict(value) if isinstance(value, Mapping) else {}

    @cached_property
    def keys(self) -> list[str]:
        """Every metric of the run, sorted."""
        return sorted({key for row in self.metrics for key in row if key != "update"})

    def series(self, key: str) -> Series:
        """One metric over the run; empty when it was never measured."""
        points = [(row["update"], row[key]) for row in self.metrics if _is_number(row.get(key))]
        updates, values = zip(*points, strict=True) if points else ((), ())
        return Series(key, np.array(updates, np.int64), np.array(values, np.float64))

    def first(self, key: str) -> float | None:
        """The earliest value of a metric that is measured once, such as `drift/noise_floor`."""
        series = self.series(key)
        return float(series.values[0]) if len(series) else None

    def sets(self) -> dict[str, list[Evaluation]]:
        """Evaluations of each held-out set, by update."""
        names = dict.fromkeys(e.name for e in self.evaluations)
        return {name: [e for e in self.evaluations if e.name == name] for name in names}


def read_run(run_dir: Path) -> RunRecord:
    """Read a run folder, finished or not.

    Raises:
        DataError: Not a run folder, or a damaged file in it (named, with its line).
    """
    path = run_dir / "run.json"
    if not path.is_file():
        raise DataError(
            f"{run_dir} is not a run folder: it has no run.json",
            hint="give the folder of a training run, such as runs/NAME",
        )
    try:
        identity = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error})") from error
    if not isinstance(identity, dict):
        raise DataError(f"{path} holds a {type(identity).__name__}; expected an object")
    config = run_dir / "config.yaml"
    return RunRecord(
        run_dir,
        identity,
        config.read_text("utf-8") if config.is_file() else "",
        tuple(read_rows(run_dir / "metrics.jsonl")),
        tuple(read_evaluations(run_dir)),
        decisions_in(read_rows(run_dir / "ledger.jsonl")),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
