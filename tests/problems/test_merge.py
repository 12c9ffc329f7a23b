"""Sources one after the other, their ids, and what two sets have in common."""

import pytest

from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.problems import dedupe, load, overlap
from offline_rlvr.records import Problem


@pytest.fixture
def source(tmp_path):
    """Writes (id, question, answer) as a CSV file; gives the source that reads it."""

    def write(name, *rows):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["id,question,answer", *(",".join(row) for row in rows)]))
        return {"name": "files", "path": str(path)}

    return write


def test_order_is_kept_and_the_first_wins(source):
    first = source("first", ("a", "1 + 1", "2"), ("b", "1 + 2", "3"))
    second = source("second", ("c", "1 + 1", "two"), ("d", "1 + 3", "4"))
    merged = load("merge", sources=[first, second])
    assert [p.id for p in merged] == ["a", "b", "c", "d"]
    assert dedupe(merged) == ([merged[0], merged[1], merged[3]], 1)
    assert dedupe(load("merge", sources=[second, first]))[0][0].answer == "two"


def test_a_shared_id_prefixes_every_id(source):
    first = source("first", ("a", "q1", "1"), ("1/a", "q2", "2"))
    second = source("second", ("a", "q3", "3"))
    assert load("merge", sources=[first, second]) == [
        Problem("0/a", "q1", "1"),
        Problem("0/1/a", "q2", "2"),
        Problem("1/a", "q3", "3"),
    ]


def test_sources_of_different_kinds():
    parts = [
        {"name": "arithmetic", "count": 3},
        {"name": "arithmetic", "count": 2, "split": "heldout"},
    ]
    merged = load("merge", sources=parts)
    assert merged == [p for part in parts for p in load(**part)]
    assert len(merged) == 5


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], r"sources is \[\]"),
        ({"name": "arithmetic"}, "expected a list"),
        ([{"count": 3}], "source 0 is {'count': 3}"),
        (["arithmetic"], "source 0 is 'arithmetic'"),
        (
            [{"name": "arithmetic", "count": 1}, {"name": "arithmetic", "counts": 3}],
            r"source 1 \(arithmetic\): unknown parameter",
        ),
        ([{"name": "file"}], r"source 0 \(file\): unknown problem source"),
    ],
)
def test_wrong_settings_name_the_source(sources, message):
    with pytest.raises(ConfigError, match=message):
        load("merge", sources=sources)


def test_a_damaged_source_stops_the_merge(source):
    with pytest.raises(DataError, match=r"bad\.csv, line 2: 'answer' is empty"):
        load("merge", sources=[source("good", ("a", "q", "1")), source("bad", ("b", "p", ""))])


def test_overlap_is_by_question_without_case_and_white_space():
    train = [
        Problem("a", "What is  1 + 1?\n", "2"),
        Problem("b", "What is 1 + 2?", "3"),
        Problem("c", "STRASSE", "x"),
        Problem("d", "What is 1+1?", "2"),
    ]
    test = [
        Problem("z", "what IS 1 +\t1?", "5"),
        Problem("y", "straße", "x"),
        Problem("b", "q", ""),
    ]
    assert overlap(train, test) == ["a", "c"]
    assert overlap(iter(train), []) == []
