"""A run's model card: what was trained on what, how far it drifted, and whether it got better."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_rlvr.dotted import leaves
from offline_rlvr.pool.card import cell, inline
from offline_rlvr.publish.cost import RunCost
from offline_rlvr.report.definitions import definitions_of
from offline_rlvr.report.record import RunRecord, read_run
from offline_rlvr.report.verdict import compare, ending, missing, number, overall, verdict
from offline_rlvr.report.verdict import percent as share
from offline_rlvr.trainer.verify import verify_run

#: Measures of the last update that the card shows with their definitions.
DRIFT = (
    "drift/abs_log_ratio",
    "drift/noise_floor",
    "drift/k3_behavior_policy",
    "weights/ess",
    "probe/abs_log_ratio",
    "reference/k3",
    "policy/entropy",
)


def render(path: Path, pool_repo: str | None = None, update: int | None = None) -> str:
    """The card of a run with a checkpoint, as Markdown with the hub's front matter.

    Args:
        path: The run's folder.
        pool_repo: Data set repository of the pool, when it was pushed.
        update: Whose weights the card lies beside; None: the newest.

    Raises:
        DataError: Not a run, no checkpoint, damaged, or not exactly once.
    """
    proof = verify_run(path)
    run = read_run(path)
    parts = [
        _front_matter(run, path, pool_repo),
        [f"# {inline(run.name)}", "", inline(verdict(run)[1]), ""],
        [inline(line) for line in _summary(run, pool_repo, update)],
        ["", f"Exactly once: {inline(proof.split(': ', 1)[1])}.", ""],
        ["## Accuracy", "", *_accuracy(run), ""],
        ["## Drift from the behavior policy", "", inline(ending(run)), "", *_drift(run), ""],
        ["## Method", "", *_table(("setting", "value"), _method(run)), ""],
        ["## Cost", "", *(f"- {inline(line)}" for line in RunCost.of(path).lines()), ""],
        ["## Versions", "", *_table(("package", "version"), run.part("versions").items()), ""],
    ]
    return "\n".join(line for part in parts for line in part)


def _front_matter(run: RunRecord, path: Path, pool_repo: str | None) -> Iterator[str]:
    """JSON strings are YAML strings, whatever characters a name holds."""
    base = str(run.part("model").get("name_or_path"))
    adapter = bool(list(path.glob("checkpoints/update-*/model/adapter_config.json")))
    yield "---"
    yield f"library_name: {'peft' if adapter else 'transformers'}"
    yield "pipeline_tag: text-generation"
    yield "tags:\n- offline-rlvr\n- reinforcement-learning"
    if base.count("/") == 1 and not Path(base).exists():  # a hub id
        yield f"base_model: {json.dumps(base)}"
    if pool_repo:
        yield f"datasets:\n- {json.dumps(pool_repo)}"
    yield "---\n"


def _summary(run: RunRecord, pool_repo: str | None, update: int | None) -> Iterator[str]:
    model, pool, objective = run.part("model"), run.part("pool"), run.part("objective")
    revision = f" at {model['revision']}" if model.get("revision") else ""
    yield f"- base model: {model.get('name_or_path')}{revision}"
    name = pool_repo or Path(str(pool.get("path"))).name
    yield f"- rollout pool: {name}, commit {pool.get('commit')}, hash {pool.get('hash')}"
    yield f"- objective: {objective.get('name')}"
    yield f"- updates: {run.applied} of {run.planned}, {run.trained_groups} groups, each once"
    if update is not None:
        yield f"- weights: after update {update} (best held-out accuracy); the rest: the whole run"
    yield from (f"- {note}" for note in missing(run))


def _accuracy(run: RunRecord) -> list[str]:
    comparisons = compare(run)
    rows = [
        (c.before.name, len(c.before.problem_ids), change)
        for c in comparisons
        for change in c.changes
    ]
    together = overall(comparisons)
    if together is not None and len(comparisons) > 1:
        rows.append(("all problems", together.difference.problems, together))
    if not rows:
        return ["No held-out set was evaluated both before and after training."]
    header = ("set", "problems", "metric", "before", "after", "difference")
    cells = [
        (name, count, change.metric, share(change.before), share(change.after), change.words())
        for name, count, change in rows
    ]
    return _table(header, cells)


def _drift(run: RunRecord) -> list[str]:
    keys = [key for key in DRIFT if len(run.series(key))]
    definitions = definitions_of(keys)
    rows = [(key, number(run.series(key).last), definitions.get(key, "")) for key in keys]
    return _table(("measure", "last value", "definition"), rows)


def _method(run: RunRecord) -> list[tuple[str, Any]]:
    """The identifying settings but the problem sources, and the objective with its parameters."""
    shown = ("model", "pool", "sampling", "selection", "objective", "reference", "old", "train")
    settings = run.part("settings")
    return [(key, value) for key, value in settings.items() if key.split(".")[0] in shown] or [
        *leaves(run.part("objective"), "objective")
    ]


def _table(header: Sequence[str], rows: Any) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell(_text(value)) for value in row) + " |" for row in lines]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
