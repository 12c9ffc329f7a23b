"""`responses/*.parquet` of a run: one row for each response trained on (see README.md here)."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from offline_rlvr.errors import DataError

RESPONSE_SCHEMA = pa.schema(
    [
        ("update", pa.int32()),
        ("group_id", pa.int64()),
        ("index", pa.int16()),
        ("reward", pa.float64()),
        ("s", pa.float64()),
        ("s_ref", pa.float64()),
        ("s_behavior", pa.float64()),
        ("q", pa.float64()),
        ("coefficient", pa.float64()),
    ]
)


def read_responses(run: Path) -> dict[str, NDArray]:
    """Every recorded response of a run.

    Args:
        run: The run's folder.

    Returns:
        Column -> [N], in the order of updates; nan where a number is not known. Empty columns for
        a run without a checkpoint.

    Raises:
        DataError: A file is damaged or has other columns; named.
    """
    tables = [_read(path) for path in sorted((run / "responses").glob("updates-*.parquet"))]
    table = pa.concat_tables([RESPONSE_SCHEMA.empty_table(), *tables])
    return {name: np.asarray(table[name]) for name in RESPONSE_SCHEMA.names}


def _read(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not table.schema.equals(RESPONSE_SCHEMA, check_metadata=False):
        raise DataError(
            f"{path} has columns {table.schema.names}; expected {RESPONSE_SCHEMA.names}"
        )
    return table
