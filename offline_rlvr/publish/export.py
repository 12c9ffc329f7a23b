"""A run's stored evaluations as other tools' result files: inspect's logs, lighteval's results.

`inspect`: one JSON log per set and update, as `inspect view --log-dir DIR` and
`inspect_ai.log.read_eval_log` read them; a response is an epoch of its problem.

`lighteval`: per update `results/MODEL/results_DATE.json`, and `details/MODEL/DATE/` with one
Parquet file per set, a row per problem with columns `doc`, `model_response` and `metric`.

Prompts are not stored with an evaluation: the input is the question. Token ids are not, either.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.evaluation import Evaluation, mean_at_k, pass_at_k_of
from offline_rlvr.numerics.pass_at_k import powers_of_two
from offline_rlvr.report.record import RunRecord, read_run

#: Of inspect's log format.
INSPECT_VERSION = 2
STOP_REASON = {"stop": "stop", "length": "max_tokens"}


def export(path: Path, output: Path, layout: str) -> list[Path]:
    """Write every stored evaluation of a run.

    Args:
        path: The run's folder.
        output: The folder to write into; files of an earlier export are replaced.
        layout: `inspect` or `lighteval`.

    Returns:
        The files, in order.

    Raises:
        ConfigError: An unknown layout.
        DataError: Not a run, or nothing was evaluated.
        ResourceError: A file cannot be written.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"unknown format {layout!r}; allowed: {', '.join(LAYOUTS)}")
    run = read_run(path)
    if not run.evaluations:
        raise DataError(
            f"{path} has no evaluations", hint=f"offline-rlvr evaluate {path} makes them"
        )
    return LAYOUTS[layout](run, output)


def _inspect(run: RunRecord, output: Path) -> list[Path]:
    make_folder(output)
    files = []
    for result in run.evaluations:
        name = f"{_date(run)}_{result.name}_{run.name}-update-{result.update:06d}.json"
        files.append(output / name)
        _write_json(files[-1], _inspect_log(run, result))
    return files


def _inspect_log(run: RunRecord, result: Evaluation) -> dict[str, Any]:
    scorer = str(run.part("settings").get("verifier.name", "verifier"))
    means = result.summary()[f"mean@{result.n}"]
    model = _model(run, result.update)
    return {
        "version": INSPECT_VERSION,
        "status": "success",
        "eval": {
            "created": str(run.identity["created"]),
            "task": result.name,
            "model": model,
            "dataset": {"name": result.name, "samples": len(result.problem_ids)},
            "config": {"epochs": result.n},
            "metadata": {"objective": run.part("objective"), "update": result.update},
        },
        "results": {
            "total_samples": result.rewards.size,
            "completed_samples": result.rewards.size - result.unscored,
            "scores": [
                {
                    "name": scorer,
                    "scorer": scorer,
                    "metrics": {"mean": {"name": "mean", "value": means["value"]}},
                }
            ],
        },
        "samples": [
            _inspect_sample(result, model, scorer, problem, response)
            for problem in range(len(result.problem_ids))
            for response in range(result.n)
        ],
    }


def _inspect_sample(
    result: Evaluation, model: str, scorer: str, problem: int, response: int
) -> dict[str, Any]:
    reward = result.rewards[problem, response]
    status = result.statuses[problem][response]
    message = {
        "role": "assistant",
        "content": result.texts[problem][response],
        "source": "generate",
    }
    stop = STOP_REASON[result.finish_reasons[problem][response]]
    score = {"value": float(reward), "explanation": status}
    return {
        "id": result.problem_ids[problem],
        "epoch": response + 1,
        "input": result.questions[problem],
        "target": result.answers[problem],
        "messages": [{"role": "user", "content": result.questions[problem]}, message],
        "output": {"model": model, "choices": [{"message": message, "stop_reason": stop}]},
        # A response that could not be scored has no score; it is not a wrong one.
        "scores": {} if np.isnan(reward) else {scorer: score},
        "metadata": {"status": status},
    }


def _lighteval(run: RunRecord, output: Path) -> list[Path]:
    files = []
    for update in sorted({e.update for e in run.evaluations}):
        results = [e for e in run.evaluations if e.update == update]
        model, date = _model(run, update), _date(run)
        config = {"model_name": model, "model_config": {"model_name": model}, "lighteval_sha": "?"}
        folder = output / "details" / model / date
        make_folder(folder)
        make_folder(output / "results" / model)
        files.append(output / "results" / model / f"results_{date}.json")
        body = {
            "config_general": config,
            "results": {_task(e): _means(_metrics(e)) for e in results},
            "versions": {_task(e): 0 for e in results},
            "config_tasks": {_task(e): {"name": e.name} for e in results},
            "summary_tasks": {},
            "summary_general": {},
        }
        _write_json(files[-1], body)
        for result in results:
            files.append(folder / f"details_{_task(result)}_{date}.parquet")
            _write_details(files[-1], result)
    return files


def _write_details(path: Path, result: Evaluation) -> None:
    from datasets import Dataset

    metrics = _metrics(result)
    rows = [
        {
            "doc": {
                "id": result.problem_ids[p],
                "task_name": _task(result),
                "query": result.questions[p],
                "choices": [result.answers[p]],
                "gold_index": [0],
            },
            "model_response": {"input": result.questions[p], "text": list(result.texts[p])},
            "metric": {name: values[p] for name, values in metrics.items()},
        }
        for p in range(len(result.problem_ids))
    ]
    Dataset.from_list(rows).to_parquet(path)


def _metrics(result: Evaluation) -> dict[str, Sequence[float | None]]:
    """lighteval's name of a metric -> its value for each problem; None where it has none."""
    n = result.n
    columns = {f"avg@n:n={n}": mean_at_k(result.rewards)}
    for k in powers_of_two(n):
        columns[f"pass@k:k={k}&n={n}"] = pass_at_k_of(result.rewards, k)
    return {
        name: [None if np.isnan(value) else float(value) for value in values]
        for name, values in columns.items()
    }


def _means(metrics: Mapping[str, Sequence[float | None]]) -> dict[str, float | None]:
    known = {name: [v for v in values if v is not None] for name, values in metrics.items()}
    return {name: float(np.mean(v)) if v else None for name, v in known.items()}


def _task(result: Evaluation) -> str:
    """lighteval's task name with its number of few-shot examples."""
    return f"{result.name}|0"


def _model(run: RunRecord, update: int) -> str:
    return f"{run.name}-update-{update:06d}"


def _date(run: RunRecord) -> str:
    """Of the run's start: a second export gives the same names."""
    created = datetime.datetime.fromisoformat(str(run.identity["created"]))
    return created.strftime("%Y-%m-%dT%H-%M-%S")


def _write_json(path: Path, body: Mapping[str, Any]) -> None:
    write_file(path, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode(), replace=True)


LAYOUTS: dict[str, Callable[[RunRecord, Path], list[Path]]] = {
    "inspect": _inspect,
    "lighteval": _lighteval,
}
