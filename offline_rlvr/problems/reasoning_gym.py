"""Procedural tasks of the optional `reasoning-gym` package: puzzles, logic, algebra, and more."""

import difflib
import importlib
from typing import Any

from offline_rlvr.errors import ConfigError, ResourceError
from offline_rlvr.problems.rows import Columns, problems_of
from offline_rlvr.records import Problem


def load(task: str, count: int, seed: int = 0, **task_config: Any) -> list[Problem]:
    """Generate `count` problems of a task; ids are task, seed and a running number from 0.

    Some tasks have many right answers, of which the generator names one: judge those with a
    `function` verifier that calls `reasoning_gym.get_score_answer_fn(task)`, not with equality. A
    generator may repeat a question.

    Args:
        task: A data set of reasoning-gym, e.g. `chain_sum`.
        count: How many problems, >= 1.
        seed: Decides which ones; other seeds give other problems.
        **task_config: The task's own settings, e.g. `max_terms=3`.

    Raises:
        ResourceError: The package is not installed.
        ConfigError: An unknown task (the nearest is named), or settings that the task refuses.
        DataError: The task gives no gold answer (a few, such as `graph_color`, only check one).
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"reasoning_gym: count is {count!r}; it must be a number of at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"reasoning_gym: seed is {seed!r}; it must be a whole number")
    if "size" in task_config:
        raise ConfigError("reasoning_gym: there is no parameter 'size'", hint="set count")
    try:
        gym: Any = importlib.import_module("reasoning_gym")
        known = importlib.import_module("reasoning_gym.factory").DATASETS
    except ImportError as error:
        raise ResourceError(
            f"problems 'reasoning_gym' need the package reasoning-gym: {error}",
            hint='pip install "offline-rlvr[reasoning-gym]"',
        ) from error
    if task not in known:
        nearest = difflib.get_close_matches(str(task), known, n=1)
        raise ConfigError(
            f"reasoning_gym: unknown task {task!r}; allowed: {', '.join(sorted(known))}",
            hint=f"did you mean {nearest[0]!r}?" if nearest else None,
        )
    try:
        # A task checks its settings with `assert`.
        dataset = gym.create_dataset(task, size=count, seed=seed, **task_config)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"reasoning_gym: task {task!r} refuses its settings: {error}") from error
    # By position: iterating the data set itself would depend on how it ends.
    rows = ((f"problem {i}", _question_and_answer(dataset[i])) for i in range(count))
    return problems_of(f"reasoning_gym {task}", f"{task}-{seed}", rows, Columns())


def _question_and_answer(entry: dict[str, Any]) -> dict[str, Any]:
    # Other keys are metadata: an "id" there would not be unique.
    return {"question": entry["question"], "answer": entry["answer"]}
