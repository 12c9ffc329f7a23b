"""Problems from files: exact text, ids, and every damaged row named."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.problems import load
from offline_rlvr.records import Problem

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"


def write(folder: Path, name: str, content: str | bytes) -> str:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def test_jsonl_keeps_numbers_as_written(tmp_path: Path):
    path = write(
        tmp_path,
        "set.jsonl",
        '{"id": 3, "question": "a", "answer": 7}\n\n'
        '{"id": "x", "question": "b é", "answer": 7.0}\n'
        '{"id": "y", "question": "c", "answer": 0.10}\n'
        '{"id": "z", "question": "d", "answer": " \\\\frac12 "}',
    )
    assert load("files", path=path) == [
        Problem("3", "a", "7"),
        Problem("x", "b é", "7.0"),
        Problem("y", "c", "0.10"),
        Problem("z", "d", " \\frac12 "),
    ]


def test_a_number_of_5000_digits_is_kept(tmp_path: Path):
    digits = "9" * 5000
    path = write(tmp_path, "big.jsonl", f'{{"question": "q", "answer": {digits}}}')
    assert load("files", path=path)[0].answer == digits


def test_columns_limit_and_running_ids(tmp_path: Path):
    path = write(tmp_path, "my.csv", 'problem,gold\n"1,\n2",3\n4,5\n6,7\n')
    assert load("files", path=path, question="problem", answer="gold", limit=2) == [
        Problem("my-0", "1,\n2", "3"),
        Problem("my-1", "4", "5"),
    ]


def test_parquet_numbers_become_exact_text(tmp_path: Path):
    file = tmp_path / "set.parquet"
    for answers, expected in (
        (pa.array([7, -2]), ["7", "-2"]),
        (pa.array([7.0, 0.5]), ["7.0", "0.5"]),
        (pa.array([Decimal("1.50"), Decimal("2.25")]), ["1.50", "2.25"]),
    ):
        pq.write_table(pa.table({"question": ["a", "b"], "answer": answers}), file)
        assert [p.answer for p in load("files", path=str(file))] == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"question": "q", "answer": "1"}\n{"question": "q2", "ans',
            "line 2: not JSON",
        ),
        ("a.jsonl", b'{"question": "q", "answer": "1"}\n\xff\xfe\n', "line 2: not JSON"),
        (
            "a.jsonl",
            '{"question": "q", "answer": "1"}\n\n[1]\n',
            "line 3: list; expected an object",
        ),
        (
            "a.jsonl",
            '{"question": "q", "answer": "1"}\n{"question": "p"}\n',
            "line 2: there is no 'answer'",
        ),
        ("a.jsonl", '{"question": " ", "answer": "1"}\n', "line 1: 'question' is empty"),
        ("a.jsonl", '{"question": "q", "answer": ""}\n', "line 1: 'answer' is empty"),
        ("a.jsonl", '{"question": "q", "answer": null}\n', "line 1: 'answer' is None"),
        ("a.jsonl", '{"question": "q", "answer": true}\n', "line 1: 'answer' is True"),
        ("a.jsonl", '{"question": "q", "answer": NaN}\n', "line 1: 'answer' is nan"),
        ("a.jsonl", '{"question": "q", "answer": [1]}\n', r"line 1: 'answer' is \['1'\]"),
        ("a.jsonl", "", "holds no problems"),
        (
            "a.jsonl",
            '{"id": 1, "question": "q", "answer": "1"}\n{"id": 1, "question": "p", "answer": "1"}',
            "line 2: id '1' is already that of line 1",
        ),
        ("a.csv", "question,answer\n1,2\n3\n", "line 3: expected 2 cells"),
        ("a.csv", "question,answer\n1,2\n3,4,5\n", "line 3: expected 2 cells"),
        ("a.csv", b"question,answer\n1,2\n\xff,3\n", "not CSV in UTF-8"),
        ("a.parquet", "PAR1 nothing", "row 0 or later: damaged Parquet"),
    ],
)
def test_a_damaged_file_is_refused_with_file_and_row(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message) as caught:
        load("files", path=write(tmp_path, name, content))
    assert name in str(caught.value)


def test_a_truncated_parquet_is_refused(tmp_path: Path):
    file = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"question": ["q"] * 500, "answer": ["1"] * 500}), file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"cut\.parquet"):
        load("files", path=str(file))


def test_wrong_settings_are_config_errors(tmp_path: Path):
    path = write(tmp_path, "a.jsonl", '{"question": "q", "answer": "1"}')
    with pytest.raises(ConfigError, match="no problem file"):
        load("files", path=str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="no column 'problem'; it has: 'question', 'answer'"):
        load("files", path=path, question="problem")
    with pytest.raises(ConfigError, match="no column 'uid'"):
        load("files", path=path, id="uid")
    with pytest.raises(ConfigError, match="limit is 0"):
        load("files", path=path, limit=0)
    with pytest.raises(ConfigError, match=r"'\.txt'; allowed: \.jsonl, \.csv, \.parquet"):
        load("files", path=write(tmp_path, "a.txt", "x"))


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="larger problem sets are not beside the repo")
@pytest.mark.parametrize(
    ("name", "least"), [("aime24", 30), ("amc23", 40), ("gsm8k_test", 1000), ("math500", 500)]
)
def test_larger_sets_load(name: str, least: int):
    problems = load("files", path=str(SHARED_DATA / f"{name}.jsonl"))
    assert len(problems) >= least
    assert len({problem.id for problem in problems}) == len(problems)
