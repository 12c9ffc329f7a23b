"""The queries of offline_rlvr/trainer/README.md, run as they stand, and the page of them."""

import json
import math
import pathlib
import re
import shutil

import duckdb
import numpy as np
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import DataError
from offline_rlvr.pool import Pool
from offline_rlvr.report import render_report
from offline_rlvr.report.record import read_run
from offline_rlvr.report.trained import trained_responses
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.response_files import RESPONSE_SCHEMA, read_responses
from offline_rlvr.trainer.run import train

REPOSITORY = pathlib.Path(__file__).parents[2]
README = REPOSITORY / "offline_rlvr/trainer/README.md"
QUERIES = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)[1]


@pytest.fixture(scope="module")
def run(small_job, small_pool, tmp_path_factory):
    """A run that moves far enough for right answers to be pushed down."""
    path = tmp_path_factory.mktemp("run") / "far"
    fast = [("train.learning_rate", "3e-3"), ("objective.beta", "3.0")]
    train(load_config(small_job, fast), small_pool, path)
    return path


@pytest.fixture
def found(run, small_pool, tmp_path, monkeypatch):
    for folder, target in (("runs", run), ("pools", small_pool)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "quickstart").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(QUERIES, names)
    return names


@pytest.fixture(scope="module")
def responses(run):
    """Rows of the record as dicts, read without a query."""
    columns = read_responses(run)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_the_record_has_every_response_once(run, responses):
    ledger = [group for row in read_rows(run / "ledger.jsonl") for group in row["group_ids"]]
    assert sorted((r["group_id"], r["index"]) for r in responses) == sorted(
        (group, index) for group in ledger for index in range(4)
    )


def test_documented_columns_are_those_of_the_file():
    table = README.read_text().split("## Responses")[1].split("```")[0]
    first = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(first)) == RESPONSE_SCHEMA.names


def test_right_answers_pushed_down(found, responses, small_pool):
    expected = sorted(
        (r["coefficient"], r["update"], r["group_id"], r["index"])
        for r in responses
        if r["reward"] == 1 and r["coefficient"] < 0
    )
    assert expected
    rows = found["pushed_down"].fetchall()
    assert [(row[3], *row[:3]) for row in rows] == expected
    pool = Pool.open(small_pool)
    for _, group_id, index, _, moved, question, text in rows:
        (group,) = pool.read([group_id])
        assert (group.question, group.texts[index]) == (question, text)
        (own,) = [r for r in responses if (r["group_id"], r["index"]) == (group_id, index)]
        assert moved == own["s"] - own["s_behavior"]
    for update, share in found["share_pushed_down"].fetchall():
        mine = [r for r in responses if r["update"] == update and r["reward"] == 1]
        assert share == pytest.approx(np.mean([r["coefficient"] < 0 for r in mine]))


def test_where_ess_concentrates(found, run, responses):
    rows = found["concentration"].fetchall()
    assert len(rows) == len(responses)  # six updates: all are among the last eight
    weights = np.exp([r["s"] - r["s_behavior"] for r in responses])
    expected = np.sort(weights**2 / (weights**2).sum())[::-1]
    assert [row[-1] for row in rows] == pytest.approx(expected.tolist())
    last = list(read_rows(run / "metrics.jsonl"))[-1]
    assert found["ess"].fetchall()[0][0] == pytest.approx(last["weights/ess"])


def test_how_q_moved(found, responses):
    groups: dict[tuple[int, int], list[dict]] = {}
    for r in responses:
        if r["reward"] == 1:
            groups.setdefault((r["update"], r["group_id"]), []).append(r)
    expected = {
        (*key, r["index"]): r["q"] * len(group) / math.fsum(x["q"] for x in group)
        for key, group in groups.items()
        for r in group
    }
    rows = found["q_moved"].fetchall()
    assert {row[:3]: row[3] for row in rows} == pytest.approx(expected)
    assert [row[3] for row in rows] == sorted(row[3] for row in rows)


def test_the_page_shows_the_ends_of_the_same_lists(found, run, small_pool):
    shown = trained_responses(read_run(run))
    assert not shown.without_texts
    down, up, ess, q = shown.questions
    rows = found["pushed_down"].fetchall()
    assert down.summary.startswith(f"{len(rows)} of ")
    update, group, index, coefficient, *_, text = rows[0]
    assert down.responses[0].where == f"update {update}, group {group}, response {index}"
    assert f"coefficient {coefficient:.3g}" in down.responses[0].numbers
    assert (down.responses[0].text, down.responses[0].right) == (text, True)
    assert all(not response.right for response in up.responses)
    top = found["concentration"].fetchall()[0]
    assert ess.responses[0].where == f"update {top[0]}, group {top[1]}, response {top[2]}"
    moved = found["q_moved"].fetchall()
    shares = {f"update {row[0]}, group {row[1]}, response {row[2]}": row[3] for row in moved}
    least = moved[0][3]  # several may have it, but for rounding
    assert shares[q.responses[0].where] == pytest.approx(least)
    assert f"{least:.3g} times" in q.responses[0].numbers
    page = render_report(run).read_text("utf-8")
    assert "Responses trained on" in page
    assert page.count('class="trained"') == sum(len(one.responses) for one in shown.questions)


def test_without_the_pool_the_numbers_are_still_there(run, tmp_path):
    copy = pathlib.Path(shutil.copytree(run, tmp_path / "run"))
    facts = json.loads((copy / "run.json").read_text())

    def changed(**pool):
        (copy / "run.json").write_text(json.dumps({**facts, "pool": {**facts["pool"], **pool}}))

    changed(hash="0" * 64)
    shown = trained_responses(read_run(copy))
    assert "another one or has grown" in shown.without_texts
    assert shown.questions[0].responses[0].text == ""
    changed(path="pools/gone")
    assert "pools/gone" in trained_responses(read_run(copy)).without_texts
    assert "Texts are left out" in render_report(copy).read_text("utf-8")


def test_a_damaged_record_is_named(run, tmp_path):
    copy = pathlib.Path(shutil.copytree(run, tmp_path / "run"))
    file = next((copy / "responses").iterdir())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=file.name):
        read_responses(copy)
    duckdb.sql(f"copy (select 1 as update) to '{file}' (format parquet)")
    with pytest.raises(DataError, match="expected"):
        read_responses(copy)
