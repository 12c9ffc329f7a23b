"""Journals: whole rows survive, a torn last line is dropped, damage elsewhere is told."""

import json
import os

import pytest

from offline_rlvr.errors import DataError
from offline_rlvr.stream import Journal, read_rows


def test_rows_come_back_and_non_finite_numbers_are_null(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    journal.append({"update": 1, "loss": 0.1})
    journal.append({"update": 2, "loss": float("nan"), "list": [float("inf"), 1.0]})
    assert journal.rows() == [
        {"update": 1, "loss": 0.1},
        {"update": 2, "loss": None, "list": [None, 1.0]},
    ]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_last_line_is_dropped_wherever_it_was_cut(tmp_path, cut):
    journal = Journal(tmp_path / "j.jsonl")
    journal.append({"update": 1})
    journal.append({"update": 2})
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[:-cut])
    assert journal.rows() == [{"update": 1}]


def test_damage_before_the_last_line_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"update": 1}\n{"upd\n{"update": 3}\n')
    with pytest.raises(DataError, match=r"j\.jsonl:2"):
        list(read_rows(path))


def test_rewind_moves_late_rows_aside_and_appending_continues(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    for update in (1, 2, 3):
        journal.append({"update": update})
    with journal.path.open("a") as file:
        file.write('{"update": 4, "torn')
    assert journal.rewind(1, tmp_path / "discarded.jsonl") == 2
    journal.append({"update": 2})
    assert [row["update"] for row in journal.rows()] == [1, 2]
    aside = (tmp_path / "discarded.jsonl").read_text().splitlines()
    assert [json.loads(line)["update"] for line in aside] == [2, 3]


def test_a_line_and_the_name_of_a_new_journal_are_durable_once_it_is_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    journal = Journal(tmp_path / "j.jsonl")
    journal.append({"update": 1})
    assert synced == [str(tmp_path / "j.jsonl"), str(tmp_path)]
    journal.append({"update": 2})
    assert synced[2:] == [str(tmp_path / "j.jsonl")]


@pytest.mark.parametrize("line", ["9", "[]", "{}", '{"update": "1"}'])
def test_a_line_that_is_no_row_is_an_error(tmp_path, line):
    path = tmp_path / "j.jsonl"
    path.write_text(f'{line}\n{{"update": 1}}\n')
    with pytest.raises(DataError, match=r"j\.jsonl:1: expected an object"):
        list(read_rows(path))


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "j.jsonl")
    with pytest.raises(DataError, match="is not a file"):
        list(read_rows(tmp_path / "j.jsonl"))
