"""What makes runs comparable: the same pool, plan, length and measure; and what makes a method."""

from collections.abc import Sequence
from shlex import quote
from typing import Any

from offline_rlvr.errors import BusyError, DataError, IncompatibleError
from offline_rlvr.lock import writer_of
from offline_rlvr.report.record import RunRecord
from offline_rlvr.trainer.roles import MEASURE, NO_NUMBER, PLAN, POOL, SEED, SEEDS

Settings = dict[str, Any]


def refuse_unfinished(run: RunRecord) -> None:
    """A run is compared when it is trained to its end, and evaluated before and there.

    Raises:
        DataError: It does not record what identifies it.
        BusyError: It is still being trained.
        IncompatibleError: It is not finished or not evaluated.
    """
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


def refuse_other(first: RunRecord, run: RunRecord) -> None:
    """Both must share pool, length and measure.

    Raises:
        IncompatibleError: Names each difference.
    """
    differing = []
    ours, theirs = first.part("pool"), run.part("pool")
    if ours.get("hash") != theirs.get("hash"):
        sides = (f"{p.get('path')}, commit {p.get('commit')}" for p in (ours, theirs))
        differing.append("pool: " + " -> ".join(sides))
    if first.planned != run.planned:
        differing.append(f"updates: {first.planned} -> {run.planned}")
    mine, other = (
        {key: value for key, value in settings_of(r).items() if _starts(key, MEASURE)}
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
        engines = sorted({e.engine for r in (first, run) for e in r.evaluations if e.engine})
        if len(engines) > 1:
            differing.append(f"what answered: {' -> '.join(engines)}")
    _refuse(first, run, differing)


def refuse_other_plan(first: RunRecord, run: RunRecord) -> None:
    """Runs of one seed must have followed one plan.

    Raises:
        IncompatibleError: Names the settings that made another one.
    """
    hashes = [r.part("plan")["hash"] for r in (first, run)]
    if hashes[0] == hashes[1]:
        return
    mine, other = (
        {key: value for key, value in r.part("settings").items() if key.startswith(PLAN)}
        for r in (first, run)
    )
    plans = f"plan of seed {settings_of(run)[SEED]}: {hashes[0][:12]} -> {hashes[1][:12]}"
    _refuse(first, run, [plans, *_differences(mine, other)])


def _refuse(first: RunRecord, run: RunRecord, differing: Sequence[str]) -> None:
    if differing:
        raise IncompatibleError(
            f"{first.path} and {run.path} cannot be compared; they differ in\n  "
            + "\n  ".join(differing),
            hint="compare runs of one pool, with the same groups, length and evaluation",
        )


def settings_of(run: RunRecord) -> Settings:
    """What may tell one run from another."""
    settings = {k: v for k, v in run.part("settings").items() if not _starts(k, POOL + NO_NUMBER)}
    return settings | ({"train.stop_when": run.stop_when} if run.stop_when else {})


def identity_of(run: RunRecord) -> Settings:
    """The settings that make the method."""
    settings = settings_of(run)
    return {k: v for k, v in settings.items() if k not in SEEDS and not _starts(k, MEASURE)}


def _starts(key: str, prefixes: Sequence[str]) -> bool:
    return key not in SEEDS and key.startswith(tuple(prefixes))


def _differences(ours: Settings, theirs: Settings) -> list[str]:
    return [
        f"{key}: {ours.get(key)!r} -> {theirs.get(key)!r}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
