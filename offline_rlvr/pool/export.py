"""A pool as one file with one row per response, or per problem, for other programs.

Rows come in ascending order of group id, the K responses of a group one after another. A reward is
null where the response could not be scored: that is not 0. `logprobs` are nats under the
distribution the token was drawn from, one per completion token, EOS included.

`responses`: group_id, response (0 to K - 1), problem_id, question, answer, prompt_ids,
completion_ids, logprobs, text, finish_reason, status, reward.

`trl`: the keys that a `rollout_func` of TRL's GRPOTrainer returns, a row per completion:

| here | pool |
|---|---|
| prompt_ids | prompt_token_ids, chat template included |
| completion_ids | response_token_ids |
| logprobs | behavior_logprobs |
| reward | reward; TRL hands further keys on to its reward functions |

`verl`: the names of verl's generation dump (JSONL files of `rollout_data_dir`: input, output, gts,
score, step) joined with those of its agent loop's output (prompt_ids, response_ids, response_mask,
response_logprobs):

| here | pool |
|---|---|
| uid | group_id as text; verl groups responses by it |
| input | question (verl writes the decoded prompt, template included; decode prompt_ids for that) |
| output | response text, without special tokens |
| gts | gold answer |
| score | reward |
| step | 0: one frozen policy sampled everything |
| prompt_ids | prompt_token_ids |
| response_ids | response_token_ids |
| response_mask | 1 for every token: no tool wrote any |
| response_logprobs | behavior_logprobs |

`problems`: a row per problem, for choosing problems by difficulty: group_id, problem_id, question,
answer, scored (responses with a reward), correct, pass_rate (correct / scored; null where nothing
was scored), mean_response_length (tokens), truncated (responses cut at the length limit).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.durable import make_folder, published_file
from offline_rlvr.errors import ConfigError
from offline_rlvr.pool.blocks import GroupArrays
from offline_rlvr.pool.reader import Pool

#: Groups in memory at once, and in a row group of the Parquet file.
CHUNK_GROUPS = 64
#: Decoded bytes of the pool kept while it is read in order.
CACHE_BYTES = 32 << 20

Rows = list[tuple[GroupArrays, int]]
_IDS, _LOGPROBS = pa.list_(pa.int32()), pa.list_(pa.float32())
#: Per format: column -> (Arrow type, value of response i of a group; a row per problem has i = 0).
Column = tuple[pa.DataType, Callable[[GroupArrays, int], Any]]
PER_PROBLEM = "problems"
FORMATS: dict[str, dict[str, Column]] = {
    "responses": {
        "group_id": (pa.int64(), lambda g, i: g.group_id),
        "response": (pa.int32(), lambda g, i: i),
        "problem_id": (pa.string(), lambda g, i: g.problem_id),
        "question": (pa.string(), lambda g, i: g.question),
        "answer": (pa.string(), lambda g, i: g.answer),
        "prompt_ids": (_IDS, lambda g, i: g.prompt_token_ids),
        "completion_ids": (_IDS, lambda g, i: g.response_token_ids[i]),
        "logprobs": (_LOGPROBS, lambda g, i: g.behavior_logprobs[i]),
        "text": (pa.string(), lambda g, i: g.texts[i]),
        "finish_reason": (pa.string(), lambda g, i: g.finish_reasons[i]),
        "status": (pa.string(), lambda g, i: g.statuses[i]),
        "reward": (pa.float64(), lambda g, i: _reward(g, i)),
    },
    "trl": {
        "prompt_ids": (_IDS, lambda g, i: g.prompt_token_ids),
        "completion_ids": (_IDS, lambda g, i: g.response_token_ids[i]),
        "logprobs": (_LOGPROBS, lambda g, i: g.behavior_logprobs[i]),
        "reward": (pa.float64(), lambda g, i: _reward(g, i)),
    },
    "verl": {
        "uid": (pa.string(), lambda g, i: str(g.group_id)),
        "input": (pa.string(), lambda g, i: g.question),
        "output": (pa.string(), lambda g, i: g.texts[i]),
        "gts": (pa.string(), lambda g, i: g.answer),
        "score": (pa.float64(), lambda g, i: _reward(g, i)),
        "step": (pa.int64(), lambda g, i: 0),
        "prompt_ids": (_IDS, lambda g, i: g.prompt_token_ids),
        "response_ids": (_IDS, lambda g, i: g.response_token_ids[i]),
        "response_mask": (_IDS, lambda g, i: np.ones(len(g.response_token_ids[i]), np.int32)),
        "response_logprobs": (_LOGPROBS, lambda g, i: g.behavior_logprobs[i]),
    },
    PER_PROBLEM: {
        "group_id": (pa.int64(), lambda g, i: g.group_id),
        "problem_id": (pa.string(), lambda g, i: g.problem_id),
        "question": (pa.string(), lambda g, i: g.question),
        "answer": (pa.string(), lambda g, i: g.answer),
        "scored": (pa.int32(), lambda g, i: _scored(g)),
        "correct": (pa.int32(), lambda g, i: g.statuses.count("correct")),
        "pass_rate": (
            pa.float64(),
            lambda g, i: g.statuses.count("correct") / _scored(g) if _scored(g) else None,
        ),
        "mean_response_length": (
            pa.float64(),
            lambda g, i: float(np.mean([len(ids) for ids in g.response_token_ids])),
        ),
        "truncated": (pa.int32(), lambda g, i: g.finish_reasons.count("length")),
    },
}


def export(path: Path, file: Path, layout: str = "responses", *, replace: bool = False) -> int:
    """Write a pool to `file`, whole or not at all, in bounded memory.

    Args:
        path: The pool's folder.
        file: Ends in `.jsonl` (ASCII only, other characters as JSON escapes) or `.parquet`.
        layout: A key of `FORMATS`.
        replace: Replace an existing file.

    Returns:
        The number of rows.

    Raises:
        ConfigError: Unknown layout or suffix, an existing file, or a file inside the pool.
        DataError: The pool is damaged.
        ResourceError: The file cannot be written.
    """
    if layout not in FORMATS:
        raise ConfigError(f"unknown format {layout!r}; there are: {', '.join(FORMATS)}")
    if file.suffix not in _WRITERS:
        raise ConfigError(
            f"{file} has no known suffix; allowed: {', '.join(_WRITERS)}",
            hint=f"for example {file.with_suffix('.jsonl')}",
        )
    if file.exists() and not replace:
        raise ConfigError(f"{file} exists already", hint="choose another name, or add --force")
    pool = Pool.open(path, cache_bytes=CACHE_BYTES)
    if file.resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"{file} is inside the pool", hint="write it beside the pool")
    make_folder(file.parent)
    per_group = 1 if layout == PER_PROBLEM else pool.group_size
    with published_file(file, replace=replace) as temporary:
        _WRITERS[file.suffix](_rows(pool, per_group), FORMATS[layout], temporary)
    return len(pool) * per_group


def _reward(group: GroupArrays, i: int) -> float | None:
    value = float(group.rewards[i])
    return None if np.isnan(value) else value


def _scored(group: GroupArrays) -> int:
    return int((~np.isnan(group.rewards)).sum())


def _rows(pool: Pool, per_group: int) -> Iterator[Rows]:
    """The rows of a few groups at a time."""
    ids = pool.index.group_ids
    for first in range(0, len(ids), CHUNK_GROUPS):
        groups = pool.read(ids[first : first + CHUNK_GROUPS])
        yield [(group, i) for group in groups for i in range(per_group)]


def _write_jsonl(chunks: Iterator[Rows], columns: dict[str, Column], path: Path) -> None:
    with path.open("w", encoding="ascii", newline="\n") as file:
        for rows in chunks:
            for row in rows:
                values = {name: value(*row) for name, (_, value) in columns.items()}
                line = json.dumps(values, default=np.ndarray.tolist, allow_nan=False)
                file.write(line + "\n")


def _write_parquet(chunks: Iterator[Rows], columns: dict[str, Column], path: Path) -> None:
    schema = pa.schema([pa.field(name, kind) for name, (kind, _) in columns.items()])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in chunks:
            arrays = [
                pa.array([value(*row) for row in rows], type=kind)
                for kind, value in columns.values()
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


_WRITERS: dict[str, Callable[[Iterator[Rows], dict[str, Column], Path], None]] = {
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
