"""Evaluations on disk: one Parquet file each, written whole or not at all."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.durable import TMP_PREFIX, make_folder, write_file
from offline_rlvr.errors import DataError
from offline_rlvr.evaluation.records import Evaluation

SCHEMA = pa.schema(
    [
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("rewards", pa.list_(pa.float64()), nullable=False),
        pa.field("statuses", pa.list_(pa.string()), nullable=False),
        pa.field("texts", pa.list_(pa.string()), nullable=False),
        pa.field("lengths", pa.list_(pa.int32()), nullable=False),
        pa.field("finish_reasons", pa.list_(pa.string()), nullable=False),
    ]
)


def evaluation_path(run_dir: Path, name: str, update: int) -> Path:
    """Where the evaluation of set `name` after `update` updates lies in a run folder."""
    return run_dir / "evaluations" / f"{name}-update-{update:06d}.parquet"


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write the file whole, or leave what was there.

    Raises:
        ResourceError: The system refused (disk full, read-only).
    """
    metadata = {
        "offline_rlvr.name": evaluation.name,
        "offline_rlvr.update": str(evaluation.update),
        "offline_rlvr.engine": evaluation.engine,
    }
    unscored = np.isnan(evaluation.rewards)
    rewards = [
        [None if missing else float(reward) for reward, missing in zip(row, gone, strict=True)]
        for row, gone in zip(evaluation.rewards, unscored, strict=True)
    ]
    columns = [
        evaluation.problem_ids,
        evaluation.questions,
        evaluation.answers,
        rewards,
        evaluation.statuses,
        evaluation.texts,
        evaluation.lengths.tolist(),
        evaluation.finish_reasons,
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(metadata))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    make_folder(path.parent)
    write_file(path, sink.getvalue().to_pybytes(), replace=True)


def read_evaluation(path: Path) -> Evaluation:
    """Read one evaluation file.

    Raises:
        DataError: The file is damaged, has other columns, or contradicts itself; names the file.
    """
    hint = f"delete {path.name} and evaluate again"
    try:
        table = pq.read_table(path, page_checksum_verification=True, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint=hint) from error
    if not table.schema.equals(SCHEMA, check_metadata=False):
        raise DataError(
            f"{path} has columns {table.schema.names}; expected {SCHEMA.names}", hint=hint
        )
    metadata = table.schema.metadata or {}
    lists = {field.name: table[field.name].to_pylist() for field in SCHEMA}
    if len({len(row) for row in lists["rewards"]}) != 1:
        raise DataError(f"{path}: problems differ in their number of responses", hint=hint)
    try:
        return Evaluation(
            metadata[b"offline_rlvr.name"].decode(),
            int(metadata[b"offline_rlvr.update"]),
            tuple(lists["problem_id"]),
            tuple(lists["question"]),
            tuple(lists["answer"]),
            np.array(lists["rewards"], np.float64),  # None becomes nan
            tuple(map(tuple, lists["statuses"])),
            tuple(map(tuple, lists["texts"])),
            np.array(lists["lengths"], np.int32),
            tuple(map(tuple, lists["finish_reasons"])),
            metadata.get(b"offline_rlvr.engine", b"").decode(),
        )
    except DataError as error:
        raise DataError(f"{path}: {error.message}", hint=hint) from error
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a valid evaluation file: {error!r}", hint=hint) from error


def read_evaluations(run_dir: Path) -> list[Evaluation]:
    """All evaluations of a run, by set and update; an empty list when there is none."""
    found = sorted((run_dir / "evaluations").glob("*.parquet"))
    # What a killed write left is no evaluation, and reading a pipe would never end.
    paths = [path for path in found if path.is_file() and not path.name.startswith(TMP_PREFIX)]
    there = [found for path in paths if (found := _read_unless_gone(path)) is not None]
    return sorted(there, key=lambda e: (e.name, e.update))


def _read_unless_gone(path: Path) -> Evaluation | None:
    """None where a training that goes on from an earlier checkpoint has just removed the file."""
    try:
        return read_evaluation(path)
    except DataError:
        if path.exists():
            raise
        return None
