"""The evaluation record, its file, and its summary."""

import json
import os
import sys

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.errors import DataError, ResourceError
from offline_rlvr.evaluation import (
    Evaluation,
    evaluation_path,
    problem_weighted,
    read_evaluation,
    read_evaluations,
    write_evaluation,
)
from offline_rlvr.evaluation.records import Sampled
from offline_rlvr.records import Problem, Verdict

STATUS = {1: "correct", 0: "incorrect", None: "timeout"}


def evaluation(rewards, *, name="sums", update=0, length=3):
    """One whose response i has `length + i` tokens; the last of each problem is cut off."""
    n = len(rewards[0])
    return Evaluation.of(
        name,
        update,
        [Problem(f"{name}-{p}", f"What is {p} + 1?", str(p + 1)) for p in range(len(rewards))],
        [
            [
                Sampled(f"It is {p}", length + i, "length" if i == n - 1 else "stop")
                for i in range(n)
            ]
            for p in range(len(rewards))
        ],
        [[Verdict(STATUS[reward]) for reward in row] for row in rewards],
    )


def same(a, b):
    for name in a.__dataclass_fields__:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
        else:
            assert left == right


def test_round_trip(tmp_path):
    first = evaluation([[1, 0, None], [None, None, None]], update=160)
    path = evaluation_path(tmp_path, "sums", 160)
    assert path.name == "sums-update-000160.parquet"
    write_evaluation(path, first)
    same(read_evaluation(path), first)
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no temporary file left


def test_unscored_is_null_for_sql(tmp_path):
    path = tmp_path / "e.parquet"
    write_evaluation(path, evaluation([[1, None, None, 0]]))
    sql = f"select avg(r), count(r), count(*) from (select unnest(rewards) r from '{path}')"
    assert duckdb.sql(sql).fetchall() == [(0.5, 2, 4)]


def test_summary_by_hand():
    summary = evaluation([[1, 1, 0, 0], [1, 0, None, None], [None] * 4]).summary()
    assert summary["problems"] == 3
    assert summary["unscored"] == 6
    assert summary["truncated_share"] == 0.25
    assert summary["mean_length"] == 4.5
    mean = summary["mean@4"]
    assert (mean["value"], mean["problems"]) == (0.5, 2)
    assert mean["low"] == mean["high"] == 0.5
    assert summary["pass@2"]["value"] == pytest.approx((5 / 6 + 1) / 2)
    assert summary["pass@4"] == {"value": 1.0, "low": None, "high": None, "problems": 1}
    assert "pass@3" not in summary
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_several_sets_average_over_problems():
    small, large = evaluation([[1, 1]] * 10), evaluation([[0, 0]] * 30, name="large")
    assert problem_weighted([small, large])["value"] == 0.25


def test_all_of_a_run_in_order(tmp_path):
    assert read_evaluations(tmp_path) == []
    for name, update in (("b", 0), ("a", 10), ("a", 2)):
        write_evaluation(
            evaluation_path(tmp_path, name, update), evaluation([[1]], name=name, update=update)
        )
    found = [(e.name, e.update) for e in read_evaluations(tmp_path)]
    assert found == [("a", 2), ("a", 10), ("b", 0)]


def test_a_file_that_is_removed_while_a_run_is_read_is_left_out(tmp_path, monkeypatch):
    for update in (0, 2):
        path = evaluation_path(tmp_path, "sums", update)
        write_evaluation(path, evaluation([[1, 0]], update=update))
    read = pq.read_table

    def removed_before(path, **options):
        if path.name.endswith("2.parquet"):
            path.unlink()
        return read(path, **options)

    monkeypatch.setattr(pq, "read_table", removed_before)
    assert [found.update for found in read_evaluations(tmp_path)] == [0]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "e.parquet"
    write_evaluation(path, evaluation([[1, 1]]))

    def disk_full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(ResourceError, match="No space"):
        write_evaluation(path, evaluation([[0, 0]]))
    assert read_evaluation(path).rewards.tolist() == [[1, 1]]
    assert [p.name for p in tmp_path.iterdir()] == ["e.parquet"]


def test_the_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    path, events = tmp_path / "e.parquet", []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(path.exists()), real(fd))[1])
    write_evaluation(path, evaluation([[1]]))
    assert events == [False, True]  # the file before the rename, the folder after it


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_cut_file_is_reported_by_name(tmp_path, keep):
    path = evaluation_path(tmp_path, "sums", 0)
    write_evaluation(path, evaluation([[1, 0]]))
    raw = path.read_bytes()
    size = int(len(raw) * keep) if isinstance(keep, float) else keep
    path.write_bytes(raw[:size] if size >= 0 else raw[:-1])
    with pytest.raises(DataError, match=path.name):
        read_evaluation(path)
    with pytest.raises(DataError, match=path.name):
        read_evaluations(tmp_path)


def test_no_flipped_byte_is_read_as_something_else(tmp_path):
    path = tmp_path / "e.parquet"
    first = evaluation([[1, 0], [0, 0]])
    write_evaluation(path, first)
    raw = path.read_bytes()
    refused = 0
    for at in range(4, len(raw), 7):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
        try:
            found = read_evaluation(path)
        except DataError:
            refused += 1
        else:
            np.testing.assert_array_equal(found.rewards, first.rewards)
    assert refused > 20


def test_other_columns_are_refused(tmp_path):
    path = tmp_path / "e.parquet"
    write_evaluation(path, evaluation([[1, 0]]))
    pq.write_table(pq.read_table(path).drop_columns(["lengths"]), path)
    with pytest.raises(DataError, match=r"expected .*'lengths'"):
        read_evaluation(path)


def test_problems_with_unequal_numbers_of_responses_are_refused(tmp_path):
    path = tmp_path / "e.parquet"
    write_evaluation(path, evaluation([[1, 0], [0, 0]]))
    table = pq.read_table(path)
    at, field = table.column_names.index("rewards"), table.schema.field("rewards")
    rewards = pa.array([[1.0, 0.0], [0.0]], field.type)
    pq.write_table(table.set_column(at, field, rewards), path)
    with pytest.raises(DataError, match="problems differ in their number of responses"):
        read_evaluation(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../x"}, "a name is letters"),
        ({"update": -1}, "an update is 0 or more"),
        ({"problem_ids": ("same", "same")}, "'same' more than once"),
        ({"rewards": np.array([[1.0, np.nan], [0.0, 0.0]])}, "response 1: status 'incorrect'"),
        ({"texts": (("one",), ("one", "two"))}, "expected 2 problems with 2 responses"),
        ({"answers": ("1",)}, "expected 2 problems"),
        ({"lengths": np.zeros((2, 3), np.int32)}, "expected 2 problems"),
    ],
)
def test_contradictions_are_refused(change, message):
    good = evaluation([[1, 0], [0, 0]])
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    with pytest.raises(DataError, match=message):
        Evaluation(**{**fields, **change})


def test_ragged_and_empty_results_are_refused():
    with pytest.raises(DataError, match=r"\[1, 2\] responses"):
        evaluation([[1, 0], [1]])
    with pytest.raises(DataError, match="no responses"):
        evaluation([[]])


def test_no_torch():
    code = "import sys, offline_rlvr.evaluation; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
