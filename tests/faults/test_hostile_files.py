"""Files made to do harm, and places where reading goes wrong: nothing runs, nothing leaks, no hang.

The single cases of a pool's own files (paths, links, pipes, extension types, damaged JSON) are in
`tests/pool/test_pool_damage.py`; here they meet the command line.
"""

import json
import os
import pickle
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PART = "samples/part-00000001.parquet"
#: Steers a terminal, draws over the line, reads backwards, runs in a browser.
EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e<script>alert(1)</script><img src=x onerror=alert(1)>"


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def refused(cli, small_job, own_pool, tmp_path):
    def check(*words, code=3):
        commands = [["pool", verb, own_pool] for verb in ("stats", "verify", "show")]
        commands.append(["pool", "export", own_pool, tmp_path / "out.jsonl"])
        commands.append(["pool", "grade", own_pool, "--verifier.name", "math_verify"])
        commands.append(["pool", "build", small_job, "-o", own_pool])
        commands.append(["train", small_job, "--pool", own_pool, "--run", tmp_path / "run"])
        for arguments in commands:
            got, output = cli(*arguments)
            assert (got, "Traceback" in output) == (code, False), (arguments, output)
            for word in words:
                assert word in output, (arguments, output)
        assert not (tmp_path / "run").exists()
        assert not (tmp_path / "out.jsonl").exists()

    return check


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "/etc/passwd", "samples/../../secret.parquet", "samples/x\x1b[2J"]
)
def test_a_commit_that_points_elsewhere(own_pool, reseal, refused, tmp_path, path):
    (tmp_path / "secret.parquet").write_bytes((own_pool / PART).read_bytes())
    reseal(own_pool, lambda body: body["files"][0].update(path=path) if body["commit"] == 1 else 0)
    refused(f"{own_pool / 'commits/00000001.json'}: files.0.path: ", "unsafe or unknown path")


def test_a_name_in_a_commit_cannot_steer_the_terminal(own_pool, reseal, cli):
    reseal(own_pool, lambda body: body.update({EVIL: 1}))
    code, output = cli("pool", "stats", own_pool)
    assert code == 3
    assert "\\x1b[2J" in output
    assert all(c.isprintable() or c in "\n\t" for c in output)


@pytest.mark.parametrize("name", [PART, "samples", "commits/00000001.json", "pool.json"])
def test_a_link(own_pool, refused, tmp_path, name):
    (own_pool / name).rename(tmp_path / "elsewhere")
    (own_pool / name).symlink_to(tmp_path / "elsewhere")
    refused(f"{own_pool / name.split('/')[0]}", "link")


@pytest.mark.parametrize("name", [PART, "commits/00000001.json", "pool.json"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_something_else_than_a_file_never_blocks(own_pool, refused, name, kind, monkeypatch):
    (own_pool / name).unlink()
    if kind == "pipe":
        os.mkfifo(own_pool / name)
    elif kind == "folder":
        (own_pool / name).mkdir()
    else:
        monkeypatch.chdir((own_pool / name).parent)  # a socket's path may not be long
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(Path(name).name)
    refused(str(own_pool / name))


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a": ' * 50_000, '{"schema_version": 1' + "0" * 10_000 + "}", "\0" * 99],
)
def test_json_that_is_deep_or_huge(own_pool, refused, text):
    (own_pool / "commits/00000001.json").write_text(text)
    refused("00000001.json", "damaged")


def test_a_json_file_larger_than_any_is_not_read(own_pool, refused):
    with (own_pool / "pool.json").open("r+b") as file:
        file.truncate(8 << 30)  # a sparse file: reading it whole would take 8 GiB
    refused("pool.json is larger than any file of its kind")


def test_opening_executes_nothing(own_pool, reseal, cli, tmp_path, monkeypatch):
    """A pickle as a part, an extension type whose storage is a pickle, modules beside the data."""
    marker, payload = tmp_path / "executed", pickle.dumps(Bomb(tmp_path / "executed"))
    whole = (own_pool / PART).read_bytes()
    for name in ("conftest.py", "__init__.py", "sitecustomize.py", "samples/datasets.py"):
        (own_pool / name).write_text(f"open({str(marker)!r}, 'w')")
    table = pq.read_table(own_pool / PART)
    kind = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    field = pa.field("answer", pa.string(), metadata=kind | {b"ARROW:extension:metadata": payload})
    pq.write_table(table.set_column(3, field, table.column("answer")), own_pool / PART)
    reseal(own_pool)
    monkeypatch.chdir(own_pool)
    code, output = cli("pool", "verify", own_pool)
    assert (code, "extension type" in output) == (3, True), output
    (own_pool / PART).write_bytes(payload)
    code, output = cli("pool", "stats", own_pool)
    assert code == 3, output
    (own_pool / PART).write_bytes(whole)
    reseal(own_pool)
    assert cli("pool", "verify", own_pool)[0] == 0
    assert not marker.exists()


def test_hostile_text_is_shown_and_does_nothing(own_pool, forge, cli, tmp_path, small_job):
    forge("response_text", lambda rows: [row.__setitem__(0, EVIL) for row in rows])
    for column in ("question", "answer", "problem_id"):
        forge(column, lambda rows: rows.__setitem__(slice(None), [EVIL] * len(rows)))
    grades = next((own_pool / "grades").glob("*/part-00000001.parquet")).relative_to(own_pool)
    for column in ("golds", "answers"):
        forge(column, lambda rows: [row.__setitem__(0, EVIL) for row in rows], grades)
    for arguments in (
        ["pool", "show", own_pool, "0"],
        ["pool", "stats", own_pool],
        ["pool", "grade", own_pool, "--verifier.name", "math_verify", "--verifier.workers", "1"],
    ):
        code, output = cli(*arguments)
        assert code == 0, output
        assert all(c.isprintable() or c in "\n\t" for c in output), output
    assert "<script>" not in (own_pool / "README.md").read_text()
    code, output = cli("pool", "export", own_pool, tmp_path / "x.jsonl")
    assert code == 0, output
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text("ascii").splitlines()]
    assert rows[0]["text"] == EVIL, "exported as it is, escaped by JSON"
