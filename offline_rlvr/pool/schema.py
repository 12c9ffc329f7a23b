"""The columns of a pool: explicit Arrow schemas, and how the Parquet files are written.

samples: one row per group, its K responses as lists; every sampled response, right or wrong.
grades:  one row per group and verifier; a null reward means "could not be scored".
"""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.errors import DataError

SCHEMA_VERSION = 1
#: A row group is the unit of random access: at most this many groups ...
ROW_GROUP_ROWS = 64
#: ... and about this many decoded bytes, so that reading one group of long responses stays cheap.
ROW_GROUP_BYTES = 8 << 20


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _lists(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=nullable))


SAMPLES = pa.schema(
    [
        _required("group_id", pa.int64()),
        _required("problem_id", pa.string()),
        _required("question", pa.string()),
        _required("answer", pa.string()),
        _required("prompt_token_ids", _lists(pa.int32())),
        _required("response_token_ids", _lists(_lists(pa.int32()))),
        _required("behavior_logprobs", _lists(_lists(pa.float32()))),
        _required("response_text", _lists(pa.string())),
        _required("finish_reason", _lists(pa.string())),
        _required("seeds", _lists(pa.int64(), nullable=True)),
        # Stored beside the tokens so that a pool is indexed without decoding them.
        _required("prompt_length", pa.int32()),
        _required("response_lengths", _lists(pa.int32())),
    ]
)

GRADES = pa.schema(
    [
        _required("group_id", pa.int64()),
        _required("rewards", _lists(pa.float64(), nullable=True)),
        _required("statuses", _lists(pa.string())),
        _required("golds", _lists(pa.string(), nullable=True)),
        _required("answers", _lists(pa.string(), nullable=True)),
    ]
)

_SPLIT = {
    "behavior_logprobs": "behavior_logprobs.list.element.list.element",
    "rewards": "rewards.list.element",
}
_DICTIONARY = {
    "finish_reason": "finish_reason.list.element",
    "statuses": "statuses.list.element",
    "golds": "golds.list.element",
}


def encode(table: pa.Table) -> memoryview:
    """The Parquet file of a table, in memory: zstd, byte-stream-split floats, page checksums."""
    per_row = max(1, table.nbytes // max(1, table.num_rows))
    rows = max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // per_row))
    # Any: the stubs know these two options as flags only.
    dictionary: Any = [path for name, path in _DICTIONARY.items() if name in table.column_names]
    split: Any = [path for name, path in _SPLIT.items() if name in table.column_names]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=rows,
        compression="zstd",
        use_dictionary=dictionary,
        use_byte_stream_split=split,
        write_page_checksum=True,
    )
    return memoryview(sink.getvalue())


def check_schema(found: pa.Schema, expected: pa.Schema, file: str) -> None:
    """Refuse a file whose columns are not exactly those expected.

    Nullability is not compared: a null is found, with its row, when the values are read.

    Raises:
        DataError: Extension type, unknown, repeated or missing column, or another type; names the
            file.
    """
    for field in found:
        if _is_extension(field):
            raise DataError(
                f"{file}: column {field.name!r} has the extension type {field.type}; "
                "a pool holds plain types only"
            )
    names = found.names
    unknown = [name for name in names if name not in expected.names]
    missing = [name for name in expected.names if name not in names]
    if unknown or missing or len(names) != len(set(names)):
        raise DataError(
            f"{file}: wrong columns (unknown: {unknown or 'none'}, missing: {missing or 'none'}); "
            f"expected {', '.join(expected.names)}"
        )
    for field in expected:
        kind = found.field(field.name).type
        if _shape(kind) != _shape(field.type):
            raise DataError(
                f"{file}: column {field.name!r} is {_shape(kind)}; expected {_shape(field.type)}"
            )


def _is_extension(field: pa.Field) -> bool:
    marked = field.metadata is not None and any(
        key.startswith(b"ARROW:extension:") for key in field.metadata
    )
    if marked or isinstance(field.type, pa.BaseExtensionType):
        return True
    return any(_is_extension(field.type.field(i)) for i in range(field.type.num_fields))


def _shape(kind: pa.DataType) -> str:
    """The type without the names and nullability of list elements."""
    return f"list<{_shape(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)
