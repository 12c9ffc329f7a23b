"""The proof, from the run folder alone, that every group counted exactly once.

It notices what happens to what counts: a ledger line, a plan row, a setting, the newest checkpoint
or an anchor that is lost, doubled, moved or changed, records that do not belong to the ledger, and
a decision that does not follow from `metrics.jsonl` and `evaluations`. A checkpoint that is said to
be kept for its accuracy must have been evaluated with it, before that line, and be the best of all
evaluated later or in the same attempt, and of those whose checkpoint is still there: others may
have been removed before `train.keep_best` was asked for. It does not judge measured values there
and in `responses`, nor older checkpoints, and cannot notice a forger who changes weights and
computes every checksum anew.
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr import objectives
from offline_rlvr.config import load_config
from offline_rlvr.errors import DataError
from offline_rlvr.evaluation import (
    Evaluation,
    best_update,
    evaluation_path,
    read_evaluations,
)
from offline_rlvr.stream import Plan, check_ledger, make_plan, read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.anchors import read_table
from offline_rlvr.trainer.decisions import (
    KEEP,
    STOP,
    Decider,
    Decision,
    best_kept,
    decisions_of,
    justified,
    keep_best,
    reason,
    schedules_of,
    stopped_after,
)
from offline_rlvr.trainer.folder import RunFolder, checkpoints_of, update_of


def verify_run(path: Path) -> str:
    """Check identity, plan, ledger, records and the newest checkpoint against each other.

    Returns:
        One plain sentence.

    Raises:
        DataError: What does not fit.
    """
    run = RunFolder.open(path)
    folders = checkpoints_of(run.checkpoints)
    try:
        return _prove(run, folders)
    except DataError:
        if not folders or folders[-1].exists():
            raise
    return verify_run(path)  # a training has put a newer one in its place meanwhile


def _prove(run: RunFolder, folders: list[Path]) -> str:
    path = run.path
    _check_settings(run)
    plan = Plan.load(path / "plan.parquet")
    _check_plan(run, plan)
    if not folders:
        raise DataError(
            f"{path} has no checkpoint yet", hint="train until the first one is written"
        )
    checkpoints.verify(folders[-1])
    state = checkpoints.read_state(folders[-1])
    applied = state["applied"]
    check_ledger(plan, read_rows(path / "ledger.jsonl"), applied, state["ledger"])
    for name, table in state["anchors"].items():
        if table is not None:
            read_table(path / "anchors", name, table)
    _check_metrics(path / "metrics.jsonl", applied)
    ended = _check_decisions(run, applied, state)
    _check_responses(path / "responses", plan, applied, run.facts["settings"]["pool.group_size"])
    groups = sum(len(plan.groups(update)) for update in range(1, applied + 1))
    return (
        f"{path}: the weights of update {applied} of {plan.updates} hold {groups} of "
        f"{len(plan.group_ids)} groups, each exactly once, in plan order{ended}"
    )


def _check_settings(run: RunFolder) -> None:
    differing = run.differences(load_config(run.path / "config.yaml"))
    if differing:
        raise DataError(
            f"{run.path / 'config.yaml'} is not the config that run.json names: "
            + "; ".join(differing)
        )


def _check_plan(run: RunFolder, plan: Plan) -> None:
    """The stored plan is the one that run.json names, and the one that its facts make again."""
    facts, settings = run.facts, run.facts["settings"]
    again = make_plan(
        [*plan.group_ids, *plan.unused],
        pool_hash=facts["pool"]["hash"],
        seed=settings["train.seed"],
        groups_per_update=settings["train.groups_per_update"],
        drop_last=settings["train.drop_last"],
    )
    if not plan.hash == facts["plan"]["hash"] == again.hash:
        raise DataError(f"{run.path / 'plan.parquet'} is not the plan that run.json names")


def _check_metrics(path: Path, applied: int) -> None:
    updates = [row["update"] for row in read_rows(path)]
    if updates[:applied] != list(range(1, applied + 1)):
        raise DataError(f"{path} does not hold updates 1 to {applied}, one line each, in order")


def _check_decisions(run: RunFolder, applied: int, state: Mapping[str, Any]) -> str:
    """Every decision in the ledger is the one that the metrics lead to, and none is missing.

    What ends a training and what it keeps may have been changed since: there, what a decision says
    of itself must hold.

    Returns:
        What a sentence about an early end adds.
    """
    config = load_config(run.path / "config.yaml")
    objective = config.build("objective", objectives.load)
    decider = Decider(None, schedules_of(config, objective), objective)
    metrics = list(read_rows(run.path / "metrics.jsonl"))[:applied]
    ledger = list(read_rows(run.path / "ledger.jsonl"))[:applied]
    evaluations = read_evaluations(run.path) if best_kept(ledger) else []
    there = {update_of(folder) for folder in checkpoints_of(run.checkpoints)}
    began = 0  # the attempt of a line: with the checkpoint of this update
    for number, row in enumerate(ledger, start=1):
        if number > 1 and row.get("attempt") != ledger[number - 2].get("attempt"):
            began = number - 1
        past = [e for e in evaluations if e.update < number]
        others = [d for d in decisions_of(row) if d.get("decision") not in (STOP, KEEP)]
        rightly = all(
            _best_of_its_time(run.path, d, past, began, there)
            if d.get("decision") == KEEP
            else d.get("decision") != STOP or justified(d, metrics[:number])
            for d in decisions_of(row)
        )
        if decider.replayed(metrics[number - 1]) != others or not rightly:
            raise DataError(
                f"the decisions of update {number} in the ledger are not those that "
                f"{run.path / 'metrics.jsonl'} and the evaluations lead to"
            )
    for name, schedule in decider.schedules.items():
        if (state["anchors"].get(name) or {}).get("first") != schedule.first:
            raise DataError(f"the checkpoint has the {name} table of another window")
    ended = stopped_after(ledger[-1], config.train.stop_when)
    return f"; stopped by train.stop_when ({reason(ended)})" if ended else ""


def _best_of_its_time(
    path: Path, decision: Decision, past: Sequence[Evaluation], began: int, there: Set[int]
) -> bool:
    """Whether a decision to keep a checkpoint follows from what was evaluated until then.

    Args:
        path: The run's folder.
        decision: What a ledger line says; the run need not have been asked for it.
        past: Evaluated before that line.
        began: The update that the attempt of that line began with.
        there: Updates whose checkpoints are there.

    Raises:
        DataError: The evaluation of the checkpoint that it names is missing.
    """
    kept = decision.get("checkpoint")
    if not isinstance(kept, int):
        return False
    evaluated = {e.name for e in past if e.update == kept}
    lost = sorted({e.name for e in past} - evaluated)
    if lost or not evaluated:
        name = evaluation_path(path, lost[0] if lost else "*", kept)
        raise DataError(
            f"the ledger has the checkpoint of update {kept} kept for its accuracy, and its "
            f"evaluation {name} is missing",
            hint=f"`offline-rlvr evaluate {path}` makes it again while the checkpoint is there",
        )
    rivals = [e for e in past if e.update >= min(kept, began) or e.update in there]
    best = best_update(rivals)
    return best is not None and decision == keep_best(*best)


def _check_responses(folder: Path, plan: Plan, applied: int, k: int) -> None:
    """Every response of updates 1..applied has one row."""
    columns = ["update", "group_id", "index"]
    try:
        files = [file for file in folder.glob("updates-*.parquet") if file.is_file()]
        tables = [pq.read_table(file, columns=columns) for file in files]
        table = pa.concat_tables(tables)
        update, group, index = (table.column(name).to_numpy() for name in columns)
    except (OSError, pa.ArrowException, LookupError) as error:
        raise DataError(f"{folder} cannot be read: {error}") from error
    found = np.stack([update, group, index], axis=1)[update <= applied]
    expected = np.array(
        [
            (number, group_id, i)
            for number in range(1, applied + 1)
            for group_id in plan.groups(number)
            for i in range(k)
        ]
    )
    if not np.array_equal(_sorted(found), _sorted(expected)):
        raise DataError(
            f"{folder} does not hold each response of updates 1 to {applied} exactly once"
        )


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T[::-1])]
