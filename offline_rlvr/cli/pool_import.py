"""`offline-rlvr pool import`: a pool from a file of somebody else's responses."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from offline_rlvr.cli.options import Overrides, read_config


@Parameter(name="*")
@dataclass(frozen=True)
class ColumnNames:
    """Columns that are not called as in the layout.

    Parameters
    ----------
    group
        Column: rows with the same value are a group; else problem_id, else the prompt.
    problem_id
        Column: name of the problem.
    prompt_ids
        Column: token ids of the prompt.
    question
        Column: the question, or the prompt that was made of it, decoded.
    answer
        Column: the gold answer.
    completion_ids
        Column: token ids of the response, with its stop token.
    logprobs
        Column: their log-probs; without it the config's model scores them, and the pool says so.
    text
        Column: the response, where there are no ids.
    finish_reason
        Column: stop or length.
    reward
        Column: a number, null where the response could not be scored.
    """

    group: str | None = None
    problem_id: str | None = None
    prompt_ids: str | None = None
    question: str | None = None
    answer: str | None = None
    completion_ids: str | None = None
    logprobs: str | None = None
    text: str | None = None
    finish_reason: str | None = None
    reward: str | None = None


NO_NAMES = ColumnNames()


def import_pool(
    file: Path,
    pool: Path,
    *overrides: Overrides,
    config: Path,
    layout: Annotated[str, Parameter(name="--format")] = "responses",
    rewards: str = "verify",
    columns: ColumnNames = NO_NAMES,
) -> None:
    """Make a pool from a file of responses, one a row; typed again, it continues.

    Parameters
    ----------
    file
        JSONL or Parquet.
    pool
        The pool's folder.
    config
        YAML file of the model, prompt and sampling settings that the responses come from.
    layout
        Names of the columns: responses, trl or verl.
    rewards
        verify: the config's verifier scores every response; given: those of the file are kept.
    """
    settings = read_config(config, overrides)
    from offline_rlvr.pool.show import format_stats
    from offline_rlvr.pool.summary import funnel
    from offline_rlvr.trainer import import_pool as importing

    named = {role: column for role, column in asdict(columns).items() if column is not None}
    made = importing.import_pool(settings, file, pool, layout, named, rewards)
    print(format_stats(funnel(made)))
