"""Runs that may be compared, grouped into methods.

Runs of one comparison were trained on the same pool, as long, and evaluated in the same way; runs
of one seed followed the same plan. Runs that differ in their seeds only are one method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.evaluation import Evaluation
from offline_rlvr.report.compare.comparable import (
    Settings,
    identity_of,
    refuse_other,
    refuse_other_plan,
    refuse_unfinished,
    settings_of,
)
from offline_rlvr.report.inert import one_line
from offline_rlvr.report.record import RunRecord, read_run
from offline_rlvr.trainer.roles import SEED


@dataclass(frozen=True)
class Band:
    """A metric over the seeds of a method: [U] updates that all of them measured."""

    updates: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Method:
    """Runs with the same settings apart from seeds.

    Attributes:
        name: What its study calls it; without a study its objective, and the settings that tell it
            from others with that objective.
        settings: Those that differ between the compared methods.
        runs: Seed -> run; the same seeds for all methods.
        left_out: Seeds that another method does not have.
    """

    name: str
    settings: Settings
    runs: Mapping[int, RunRecord] = field(repr=False)
    left_out: Sequence[int] = ()

    def band(self, key: str) -> Band:
        """A metric by update: mean, lowest and highest seed."""
        series = [run.series(key) for run in self.runs.values()]
        updates = sorted(set.intersection(*(set(s.updates.tolist()) for s in series)))
        table = np.array([s.values[np.isin(s.updates, updates)] for s in series])
        return Band(np.array(updates, np.int64), table.mean(0), table.min(0), table.max(0))

    def evaluations(self, name: str, update: int | None = None) -> dict[int, Evaluation]:
        """Seed -> evaluation of a set after `update`; None: the last one."""
        found = {seed: run.sets()[name] for seed, run in self.runs.items()}
        chosen = {s: [e for e in f if update in (None, e.update)] for s, f in found.items()}
        return {seed: results[-1] for seed, results in chosen.items() if results}

    @property
    def ended(self) -> dict[int, int]:
        """Seed -> update after which train.stop_when ended it, of those that it ended."""
        return {seed: run.applied for seed, run in self.runs.items() if run.ended}

    def last(self, key: str, updates: int = 1) -> float | None:
        """Mean over seeds of a metric's last values; None when a seed never measured it."""
        series = [run.series(key) for run in self.runs.values()]
        if not all(map(len, series)):
            return None
        return float(np.mean([s.values[-updates:].mean() for s in series]))


def read_methods(paths: Sequence[Path]) -> list[Method]:
    """Read runs, refuse what cannot be compared, and group the rest into methods.

    Args:
        paths: Run folders, or folders that hold runs.

    Raises:
        ConfigError: Fewer than two runs, or one given twice.
        DataError: Not a run folder, or a damaged file in one.
        BusyError: A run is still being trained.
        IncompatibleError: A run is not finished or not evaluated, or differs from the others in its
            pool, plan, length or evaluation; names each difference. Or no seed is common to all.
    """
    runs = [read_run(path) for path in _folders(paths)]
    if len(runs) < 2:
        raise ConfigError(
            f"{runs[0].path} is one run: there is nothing to compare it with",
            hint=f"offline-rlvr report {quote(str(runs[0].path))} shows one run; name two or more",
        )
    for run in runs:
        refuse_unfinished(run)
    for run in runs[1:]:
        refuse_other(runs[0], run)
    by_method: dict[str, dict[int, RunRecord]] = {}
    plans: dict[int, RunRecord] = {}
    for run in runs:
        seed = settings_of(run)[SEED]
        refuse_other_plan(plans.setdefault(seed, run), run)
        seeds = by_method.setdefault(repr(sorted(identity_of(run).items())), {})
        if seed in seeds:
            raise ConfigError(
                f"{seeds[seed].path} and {run.path} are the same method with the same seed {seed}",
                hint="name one of them",
            )
        seeds[seed] = run
    return _with_shared_seeds(_named([dict(sorted(s.items())) for s in by_method.values()]))


def _folders(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = [p.parent for p in sorted(path.glob("*/run.json"))]
        found += inside if inside and not (path / "run.json").is_file() else [path]
    if not found:
        raise ConfigError("no run is named", hint="offline-rlvr compare RUN RUN ...")
    resolved = [path.resolve() for path in found]
    if twice := [path for path in found if resolved.count(path.resolve()) > 1]:
        raise ConfigError(f"{twice[0]} is named twice", hint="name every run once")
    return found


def _named(groups: Sequence[dict[int, RunRecord]]) -> list[Method]:
    identities = [identity_of(next(iter(runs.values()))) for runs in groups]
    described = [_described(identity, identities) for identity in identities]
    names = [_study_name(runs) or name for runs, name in zip(groups, described, strict=True)]
    if len(set(names)) < len(names):  # of several studies, with one name for different things
        names = described
    varying = _varying(identities)
    settings = [{k: i[k] for k in varying if k in i} for i in identities]
    parts = zip(map(one_line, names), settings, groups, strict=True)
    return [Method(*part) for part in parts]


def _with_shared_seeds(methods: Sequence[Method]) -> list[Method]:
    """With the runs of those seeds that all of them have: other seeds were asked otherwise, and
    would be compared with nothing.
    """
    shared = set.intersection(*(set(method.runs) for method in methods))
    if not shared:
        seeds = (f"{m.name}: {', '.join(map(str, m.runs))}" for m in methods)
        raise IncompatibleError(
            f"no seed is common to all methods ({'; '.join(seeds)})",
            hint="train every method with the same train.seed and evaluation.seed",
        )
    return [
        replace(
            method,
            runs={seed: run for seed, run in method.runs.items() if seed in shared},
            left_out=[seed for seed in method.runs if seed not in shared],
        )
        for method in methods
    ]


def _study_name(runs: Mapping[int, RunRecord]) -> str | None:
    """Of the study that trained these runs: `OUTPUT/METHOD-SEED`, their jobs in `OUTPUT/jobs`."""
    names = set()
    for seed, run in runs.items():
        path = run.path.resolve()
        job = path.parent / "jobs" / f"{path.name}.yaml"
        names.add(path.name.removesuffix(f"-{seed}") if job.is_file() else None)
    return names.pop() if len(names) == 1 else None


def _described(identity: Settings, all_of_them: Sequence[Settings]) -> str:
    """The objective, and what tells it from the others with that objective."""
    objective = str(identity.get("objective.name"))
    same = [other for other in all_of_them if other.get("objective.name") == objective]
    settings = [
        f"{key.removeprefix('objective.')}={_value(identity.get(key))}" for key in _varying(same)
    ]
    return " ".join([objective, *settings])


def _varying(identities: Sequence[Settings]) -> list[str]:
    keys = sorted({key for identity in identities for key in identity})
    return [key for key in keys if len({repr(other.get(key)) for other in identities}) > 1]


def _value(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
