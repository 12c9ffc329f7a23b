"""Damaged data on the command line: exit code 3, file and row named, nothing trained or changed."""

import json
import shutil
from operator import methodcaller

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from offline_rlvr.generation.pretrained import folder_of
from offline_rlvr.pool import Pool

PART = "samples/part-00000001.parquet"


@pytest.fixture
def refused(cli, small_job, own_pool, tmp_path):
    """Every command that reads a pool refuses `own_pool`; nothing is trained, nothing changes."""

    def check(code, *words, commands=("verify", "stats", "train")):
        before = {p: p.stat().st_mtime_ns for p in own_pool.rglob("*") if not p.is_dir()}
        for command in commands:
            run = tmp_path / "run"
            arguments = ["pool", command, own_pool]
            if command == "train":
                arguments = ["train", small_job, "--pool", own_pool, "--run", run]
            got, output = cli(*arguments)
            assert (got, "Traceback" in output) == (code, False), (command, output)
            assert f"error[{'data' if code == 3 else 'incompatible'}]: " in output
            for word in words:
                assert word in output, (command, output)
            if run.exists():
                left = {p.name for p in run.rglob("*") if p.is_file()}
                assert left <= {".lock", ".lock-owner.json"}, "training had begun"
        assert {p: p.stat().st_mtime_ns for p in before} == before

    return check


def first_files(pool):
    """One file of each kind."""
    grades = next((pool / "grades").glob("*/part-00000001.parquet"))
    return [pool / PART, grades, pool / "commits/00000001.json", pool / "pool.json"]


@pytest.mark.parametrize("kind", range(4), ids=["samples", "grades", "commit", "pool.json"])
@pytest.mark.parametrize("keep", [lambda n: n - 1, lambda n: n // 2, lambda n: 0])
def test_truncated(own_pool, refused, kind, keep):
    file = first_files(own_pool)[kind]
    content = file.read_bytes()
    file.write_bytes(content[: keep(len(content))])
    refused(3, f"{file} is damaged")


@pytest.mark.parametrize("kind", range(4), ids=["samples", "grades", "commit", "pool.json"])
@pytest.mark.parametrize("region", ["start", "page", "middle", "footer", "end"])
def test_a_byte_flipped(own_pool, refused, kind, region):
    file = first_files(own_pool)[kind]
    content = bytearray(file.read_bytes())
    size = len(content)
    # A Parquet file ends in its footer, the footer's length and a magic word.
    at = {"start": 0, "page": size // 5, "middle": size // 2, "footer": size - 60, "end": size - 1}
    content[at[region]] ^= 0x20
    file.write_bytes(content)
    refused(3, str(file), commands=("stats",))


def test_a_byte_flipped_after_opening_is_found_by_the_page_checksum(cli, own_pool):
    """`pool show` does not hash whole files; what it reads is checked all the same."""
    content = bytearray((own_pool / PART).read_bytes())
    column = pq.read_metadata(own_pool / PART).row_group(0).column(6)
    assert column.path_in_schema.startswith("behavior_logprobs")
    content[column.data_page_offset + column.total_compressed_size - 5] ^= 1
    (own_pool / PART).write_bytes(content)
    code, output = cli("pool", "show", own_pool, "0")
    assert (code, f"{PART} is damaged" in output) == (3, True), output


@pytest.mark.parametrize("kind", range(4), ids=["samples", "grades", "commit", "pool.json"])
def test_missing(own_pool, refused, kind):
    file = first_files(own_pool)[kind]
    file.unlink()
    refused(3, f"{file} is missing", "restore it from a copy of the pool")


def test_stray_files_do_not_exist(cli, own_pool, small_pool):
    for name in ("samples/part-00000099.parquet", "samples/.tmp-part-00000002.parquet", "x.json"):
        shutil.copy(own_pool / PART, own_pool / name)
    code, output = cli("pool", "verify", own_pool)
    assert code == 0, output
    assert Pool.open(own_pool).hash == Pool.open(small_pool).hash


def values_with(value, row=2, response=1):
    def change(values):
        values[row][response][0] = value

    return change


@pytest.mark.parametrize("value", [float("nan"), 0.5, float("-inf"), None])
def test_logprobs_that_are_none(forge, refused, value):
    forge("behavior_logprobs", values_with(value))
    refused(3, f"{PART}, row 2, response 1, token 0")


def test_other_lengths_than_the_tokens(forge, refused):
    forge("behavior_logprobs", lambda values: values[2][1].append(-0.5))
    refused(3, f"{PART}, row 2, response 1")


@pytest.mark.parametrize("token", [-1, 10**6, None])
def test_a_token_outside_the_vocabulary(forge, refused, token):
    forge("response_token_ids", values_with(token))
    refused(3, f"{PART}, row 2, response 1, token 0")


def test_a_group_twice(forge, refused):
    forge("group_id", lambda values: values.__setitem__(1, values[0]))
    refused(3, "group 0 is stored more than once in samples")


@pytest.mark.parametrize("column", ["response_token_ids", "response_lengths", "finish_reason"])
def test_another_k(forge, refused, column):
    forge(column, lambda values: values[3].append(values[3][0]))
    refused(3, f"{PART}, row 3", "K = 4")


def test_a_reward_that_is_none(forge, refused, own_pool):
    part = first_files(own_pool)[1].relative_to(own_pool).as_posix()
    forge("rewards", lambda values: values[1].__setitem__(2, float("nan")), part)
    refused(3, f"{part}, row 1, response 2")


def test_an_unknown_column(own_pool, reseal, refused):
    table = pq.read_table(own_pool / PART)
    table = table.append_column("advantage", pa.array(np.zeros(table.num_rows)))
    pq.write_table(table, own_pool / PART)
    reseal(own_pool)
    refused(3, f"{PART}: wrong columns (unknown: ['advantage']")


@pytest.mark.parametrize("name", ["pool.json", "commits/00000001.json"])
def test_a_newer_schema(own_pool, refused, name):
    body = json.loads((own_pool / name).read_text())
    (own_pool / name).write_text(json.dumps(body | {"schema_version": 99}))
    refused(4, f"{own_pool / name} has schema version 99", "upgrade")


def rows_of(part):
    return pq.read_metadata(part).num_rows


def test_a_pool_without_a_mixed_group_is_not_trained_on(cli, forge, own_pool, small_job, tmp_path):
    for part in sorted((own_pool / "grades").glob("*/*.parquet")):
        for column, value in (("rewards", 0.0), ("statuses", "incorrect")):
            rows = [[value] * 4] * pq.read_metadata(part).num_rows
            forge(
                column, methodcaller("__setitem__", slice(None), rows), part.relative_to(own_pool)
            )
    code, output = cli("pool", "stats", own_pool)
    assert code == 0, output
    code, output = cli("train", small_job, "--pool", own_pool, "--run", tmp_path / "run")
    assert (code, "0 mixed groups" in output, "build a larger pool" in output) == (2, True, True), (
        output
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "line",
    [
        '{"question": "3 + 4", "ans',
        "[" * 100_000,
        "9" * 5000,
        '{"question": "\\ud800", "answer": "7"}',
    ],
    ids=["torn", "nested", "number", "surrogate"],
)
def test_a_damaged_last_line_of_the_problems(cli, small_job, tmp_path, line):
    problems = tmp_path / "questions.jsonl"
    problems.write_text('{"question": "1 + 1", "answer": "2"}\n' + line)
    source = f"{{name: files, path: '{problems}'}}"
    pool = tmp_path / "pool"
    code, output = cli("pool", "build", small_job, "-o", pool, "--problems", source)
    assert (code, f"{problems}, line 2" in output) == (3, True), output
    assert not pool.exists()


def another_revision(model):
    tensors = load_file(model / "model.safetensors")
    next(iter(tensors.values())).flatten()[0] += 1e-6
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


def two_ids_swapped(model):
    facts = json.loads((model / "tokenizer.json").read_text())
    vocabulary = facts["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (model / "tokenizer.json").write_text(json.dumps(facts))


def another_template(model):
    with (model / "chat_template.jinja").open("a") as file:
        file.write("!")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (another_revision, "weights"),
        (two_ids_swapped, "tokenizer"),
        (another_template, "chat_template"),
    ],
)
def test_another_model_than_the_pool_s(cli, small_job, small_pool, tmp_path, change, part):
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(folder_of("builtin"), model)
    change(model)
    arguments = ["train", small_job, "--pool", small_pool, "--run", run]
    code, output = cli(*arguments, "--model.name_or_path", model)
    assert (code, "Traceback" in output) == (4, False), output
    assert output.splitlines()[0].endswith(f"differs in: {part}"), output
    assert not run.exists()


def test_in_a_process_of_its_own(command, own_pool, small_job, tmp_path):
    """The same through a shell, once: nothing on standard output, one plain message."""
    (own_pool / PART).write_bytes(b"")
    for arguments in (
        ["pool", "verify", own_pool],
        ["pool", "export", own_pool, tmp_path / "x.jsonl"],
        ["pool", "grade", own_pool, "--verifier.name", "math_verify"],
        ["train", small_job, "--pool", own_pool, "--run", tmp_path / "run"],
    ):
        code, output = command(*arguments)
        assert code == 3, output
        assert output.startswith("error[data]: ")
        assert f"{own_pool / PART} is damaged: 0 bytes" in output
    assert not (tmp_path / "x.jsonl").exists()
    assert not (tmp_path / "run").exists()
