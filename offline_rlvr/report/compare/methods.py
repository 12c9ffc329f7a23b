"""Runs that may be compared, grouped into methods.

Runs of one comparison were trained on the same pool, as long, and evaluated in the same way; runs
of one seed followed the same plan. Runs that differ in their seeds only are one method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_rlvr.errors import BusyError, ConfigError, DataError, IncompatibleError
from offline_rlvr.evaluation import Evaluation
from offline_rlvr.lock import writer_of
from offline_rlvr.report.inert import one_line
from offline_rlvr.report.record import RunRecord, read_run

SEED = "train.seed"
#: Differ between the runs of one method.
SEEDS = {SEED, "evaluation.seed"}
#: What a policy is asked and how it is judged: the same for all, whatever the method.
MEASURE = ("evaluation.", "prompt.", "sampling.", "verifier.")
#: Neither a method nor a measure: what the pool's hash vouches for, and what changes no number.
NO_METHOD = (
    "pool.",
    "problems.",
    "generation.",
    "model.name_or_path",
    "model.revision",
    "model.gradient_checkpointing",
    "model.compile",
    "train.devices",
    "train.strategy",
    "train.log_entropy_every",
    "train.probe_every",
    "train.micro_batch_tokens",
    "train.max_noise_floor",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "evaluation.every",
)

Settings = dict[str, Any]


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
        runs: Seed -> run.
    """

    name: str
    settings: Settings
    runs: Mapping[int, RunRecord] = field(repr=False)

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
            pool, plan, length or evaluation; names each difference.
    """
    runs = [read_run(path) for path in _folders(paths)]
    if len(runs) < 2:
        raise ConfigError(
            f"{runs[0].path} is one run: there is nothing to compare it with",
            hint=f"offline-rlvr report {quote(str(runs[0].path))} shows one run; name two or more",
        )
    for run in runs:
        _refuse_unfinished(run)
    for run in runs[1:]:
        _refuse_other(runs[0], run)
    by_method: dict[str, dict[int, RunRecord]] = {}
    plans: dict[int, RunRecord] = {}
    for run in runs:
        seed = _settings(run)[SEED]
        _refuse_other_plan(plans.setdefault(seed, run), run)
        seeds = by_method.setdefault(repr(sorted(_identity(run).items())), {})
        if seed in seeds:
            raise ConfigError(
                f"{seeds[seed].path} and {run.path} are the same method with the same seed {seed}",
                hint="name one of them",
            )
        seeds[seed] = run
    return _named([dict(sorted(seeds.items())) for seeds in by_method.values()])


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


def _refuse_unfinished(run: RunRecord) -> None:
    name = quote(str(run.path))
    if not isinstance(run.part("settings").get(SEED), int) or not run.part("plan").get("hash"):
        raise DataError(
            f"{run.path / 'run.json'} does not record the settings and the plan of the run",
            hint=f"train it again with this version; offline-rlvr report {name} shows it alone",
        )
    if not run.finished:
        updates = f"{run.applied} of {run.planned} updates"
        if writer := writer_of(run.path):
            raise BusyError(
                f"{run.path} is still training ({writer}): {updates} are applied",
                hint=f"offline-rlvr run tail {name} --follow shows when it is done",
            )
        raise IncompatibleError(
            f"{run.path} is not finished: {updates} are applied",
            hint=f"offline-rlvr resume {name}",
        )
    sets = run.sets()
    if not sets:
        raise IncompatibleError(
            f"{run.path} has no evaluation, so there is no accuracy to compare",
            hint=f"offline-rlvr evaluate {name}; it needs evaluation.problems in the run's config",
        )
    for set_name, results in sets.items():
        if results[0].update != 0 or results[-1].update < run.applied:
            raise IncompatibleError(
                f"{run.path}: {set_name} was evaluated after updates "
                f"{', '.join(str(e.update) for e in results)}; both 0 and {run.applied} are needed",
                hint=f"offline-rlvr evaluate {name}",
            )


def _refuse_other(first: RunRecord, run: RunRecord) -> None:
    """Both must share pool, length and measure."""
    differing = []
    ours, theirs = first.part("pool"), run.part("pool")
    if ours.get("hash") != theirs.get("hash"):
        sides = (f"{p.get('path')}, commit {p.get('commit')}" for p in (ours, theirs))
        differing.append("pool: " + " -> ".join(sides))
    if first.planned != run.planned:
        differing.append(f"updates: {first.planned} -> {run.planned}")
    mine, other = (
        {key: value for key, value in _settings(r).items() if _starts(key, MEASURE)}
        for r in (first, run)
    )
    differing += _differences(mine, other)
    if not differing:
        asked, theirs_asked = (
            {name: (e[-1].problem_ids, e[-1].n) for name, e in r.sets().items()}
            for r in (first, run)
        )
        if asked != theirs_asked:
            differing.append("what was evaluated: other sets, problems or numbers of answers")
    _refuse(first, run, differing)


def _refuse_other_plan(first: RunRecord, run: RunRecord) -> None:
    hashes = [r.part("plan")["hash"] for r in (first, run)]
    if hashes[0] == hashes[1]:
        return
    shaping = ("selection.", "train.groups_per_update", "train.drop_last", "pool.probe_groups")
    mine, other = (
        {key: value for key, value in r.part("settings").items() if key.startswith(shaping)}
        for r in (first, run)
    )
    plans = f"plan of seed {_settings(run)[SEED]}: {hashes[0][:12]} -> {hashes[1][:12]}"
    _refuse(first, run, [plans, *_differences(mine, other)])


def _refuse(first: RunRecord, run: RunRecord, differing: Sequence[str]) -> None:
    if differing:
        raise IncompatibleError(
            f"{first.path} and {run.path} cannot be compared; they differ in\n  "
            + "\n  ".join(differing),
            hint="compare runs of one pool, with the same groups, length and evaluation",
        )


def _settings(run: RunRecord) -> Settings:
    settings = {k: v for k, v in run.part("settings").items() if not _starts(k, NO_METHOD)}
    return settings | ({"train.stop_when": run.stop_when} if run.stop_when else {})


def _identity(run: RunRecord) -> Settings:
    """The settings that make the method."""
    settings = _settings(run)
    return {k: v for k, v in settings.items() if k not in SEEDS and not _starts(k, MEASURE)}


def _starts(key: str, prefixes: Sequence[str]) -> bool:
    return key not in SEEDS and key.startswith(tuple(prefixes))


def _differences(ours: Settings, theirs: Settings) -> list[str]:
    return [
        f"{key}: {ours.get(key)!r} -> {theirs.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def _named(groups: Sequence[dict[int, RunRecord]]) -> list[Method]:
    identities = [_identity(next(iter(runs.values()))) for runs in groups]
    described = [_described(identity, identities) for identity in identities]
    names = [_study_name(runs) or name for runs, name in zip(groups, described, strict=True)]
    if len(set(names)) < len(names):  # of several studies, with one name for different things
        names = described
    varying = _varying(identities)
    settings = [{k: i[k] for k in varying if k in i} for i in identities]
    parts = zip(map(one_line, names), settings, groups, strict=True)
    return [Method(*part) for part in parts]


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
