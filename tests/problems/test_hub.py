"""Problems through `datasets`: nested columns, conditions, and what each failure is called."""

import os
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.problems import load
from offline_rlvr.records import Problem

NESTED = {
    "question": "prompt.0.content",
    "answer": "reward_model.ground_truth",
    "where": {"scores.mean": {"above": 0.2, "below": 0.8}},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def row(question, answer, scores, source="a"):
    return {
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "scores": scores,
        "source": source,
    }


#: Means 0.2, 0.25, 0.75, 0.8, 0.5: the bounds themselves do not belong to the range.
ROWS = [
    row("a", "1", [1.0, 0, 0, 0, 0]),
    row("b", "2", [1.0, 0, 0, 0]),
    row("c", "3", [0.0, 1, 1, 1], "x"),
    row("d", "4", [0.0, 1, 1, 1, 1]),
    row("e", "5", [0.0, 1]),
]


@pytest.fixture
def folder(tmp_path):
    """Writes rows as the Parquet file of a data set's folder."""

    def write(rows, name="set"):
        path = tmp_path / name
        path.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), path / "train-0.parquet")
        return str(path)

    return write


def test_nested_columns_and_strict_bounds(folder):
    expected = [Problem("set-1", "b", "2"), Problem("set-2", "c", "3"), Problem("set-4", "e", "5")]
    path = folder(ROWS)
    assert load("hub", path=path, **NESTED) == expected
    assert load("hub", path=path, **NESTED, limit=2) == expected[:2]
    assert load("hub", path=path, **NESTED, split="train[:2]") == expected[:1]


def test_a_file_of_a_format(folder):
    file = f"{folder(ROWS)}/train-0.parquet"
    problems = load("hub", path="parquet", data_files=file, **{**NESTED, "where": None})
    assert [p.id for p in problems] == [f"parquet-{i}" for i in range(5)]
    assert [p.answer for p in problems] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"source": {"equals": "x"}}, ["c"]),
        ({"scores.-1": {"above": 0}}, ["c", "d", "e"]),
        ({"scores.0": {"below": 1}}, ["c", "d", "e"]),
        ({"scores.0": {"equals": 1}, "scores.mean": {"above": 0.2}}, ["b"]),
    ],
)
def test_conditions(folder, where, kept):
    problems = load("hub", path=folder(ROWS), **{**NESTED, "where": where})
    assert [p.question for p in problems] == kept


def test_a_plain_column_wins_over_a_path_and_gives_the_id(folder):
    path = folder(
        [
            {"a.b": "flat", "a": {"b": "nested", "n": 7}, "answer": 2.5},
            {"a.b": "other", "a": {"b": "nested", "n": 8}, "answer": 3.0},
        ]
    )
    assert load("hub", path=path, question="a.b", id="a.n") == [
        Problem("7", "flat", "2.5"),
        Problem("8", "other", "3.0"),
    ]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (row("q", " ", [0.5]), "row 5: 'reward_model.ground_truth' is empty"),
        (row("q", None, [0.5]), "row 5: 'reward_model.ground_truth' is None"),
        (row(None, "1", [0.5]), r"row 5: 'prompt\.0\.content' is None"),
        (row("q", "1", []), r"row 5: there is no 'scores\.mean'; 'scores' is \[\]"),
        (row("q", "1", [None, 1.0]), r"row 5: there is no 'scores\.mean'"),
        (row("q", "1", None), r"row 5: there is no 'scores\.mean'; 'scores' is None"),
        ({**row("q", "1", [0.5]), "prompt": []}, "row 5: there is no 'prompt.0.content'"),
        (
            {**row("q", "1", [0.5]), "reward_model": None},
            r"row 5: .*'reward_model(\.ground_truth)?'.* is None",
        ),
    ],
)
def test_a_damaged_row_is_named(folder, damaged, message):
    with pytest.raises(DataError, match=message) as caught:
        load("hub", path=folder([*ROWS, damaged]), **NESTED)
    assert "set', split 'train'" in str(caught.value)


def test_damage_in_the_first_row_is_not_a_wrong_setting(folder):
    with pytest.raises(DataError, match=r"row 0: there is no 'prompt\.0\.content'"):
        load("hub", path=folder([{**row("q", "1", [0.5]), "prompt": []}, *ROWS]), **NESTED)


def test_no_row_meets_the_condition(folder):
    with pytest.raises(DataError, match="none of its 5 rows meets `where`"):
        load("hub", path=folder(ROWS), **{**NESTED, "where": {"source": {"equals": "y"}}})


def test_an_id_twice(folder):
    with pytest.raises(DataError, match="row 1: id 'a' is already that of row 0"):
        load("hub", path=folder(ROWS), **NESTED | {"where": None}, id="source")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "prompt.0.text"}, r"no column 'prompt\.0\.text'; 'prompt\.0' has: .*content"),
        ({"question": "problem"}, "no column 'problem'; it has: 'prompt', 'reward_model'"),
        ({"id": "uid"}, "no column 'uid'"),
        ({"answer": "source.mean"}, r"no column 'source\.mean'; 'source' is 'a' \(str\)"),
        ({"where": {"score": {"above": 0}}}, "no column 'score'"),
        ({"where": {"scores.mean": {"over": 0}}}, "'scores.mean' is {'over': 0}; allowed"),
        ({"where": {"scores.mean": {"above": "0"}}}, "allowed: {above: number"),
        ({"where": {"scores.mean": {"above": 0, "equals": 1}}}, "allowed: {above"),
        ({"where": {"scores.mean": {}}}, "allowed: {above"),
        ({"where": {"scores.mean": 0.5}}, "allowed: {above"),
        ({"where": {"source": {"equals": None}}}, "allowed: {above"),
        ({"where": ["scores"]}, "expected column: condition"),
        ({"limit": 0}, "limit is 0"),
        ({"split": "test"}, "Unknown split"),
        ({"split": None}, "split is None"),
        ({"subset": "hard"}, "'hard' not found"),
        ({"data_files": "none.parquet"}, r"none\.parquet"),
    ],
)
def test_wrong_settings_are_config_errors(folder, change, message):
    with pytest.raises(ConfigError, match=message):
        load("hub", path=folder(ROWS), **{**NESTED, **change})


def test_a_bound_needs_a_number(folder):
    with pytest.raises(DataError, match="row 0: 'source' is 'a'; a bound needs a finite number"):
        load("hub", path=folder(ROWS), **{**NESTED, "where": {"source": {"above": 0}}})


def test_a_missing_folder_is_found_without_the_network():
    with pytest.raises(ConfigError, match=r"no data set '\./data/none'"):
        load("hub", path="./data/none")


def test_a_damaged_file_is_a_data_error(folder):
    file = Path(folder(ROWS)) / "train-0.parquet"
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    with pytest.raises(DataError, match="split 'train'"):
        load("hub", path=str(file.parent), **NESTED)


def test_offline_a_hub_id_says_what_to_do_and_torch_stays_out(folder, tmp_path):
    code = f"""
import sys
from offline_rlvr.errors import ResourceError
from offline_rlvr.problems import load
assert len(load("hub", path={folder(ROWS)!r}, **{NESTED!r})) == 3
assert "torch" not in sys.modules
try:
    load("hub", path="owner/name", revision="0123456789")
except ResourceError as error:
    assert "owner/name" in error.message and "HF_HUB_OFFLINE" in error.hint, error
    assert "`path`" in error.hint
    sys.exit(37)
"""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 37, done.stderr
