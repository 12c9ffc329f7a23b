"""Damaged, hostile and foreign files: reported with their name (and row), never read as data."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool.commits import seal, sha256

PART = "samples/part-00000001.parquet"
GRADES = "grades/exact-1/part-00000001.parquet"
CHILD = pa.field("element", pa.float32())


def all_files(root):
    return sorted(
        p
        for p in root.rglob("*")
        if p.is_file() and not p.name.startswith(".") and p.name != "README.md"
    )


def reseal(root, change=lambda body: None):
    """Rewrite pool.json-to-last-commit so that checksums and chain fit again: a careful forger."""
    identity = json.loads((root / "pool.json").read_text())
    identity.pop("checksum")
    data = seal(identity)
    (root / "pool.json").write_bytes(data)
    for path in sorted((root / "commits").glob("*.json")):
        body = json.loads(path.read_text())
        body.pop("checksum")
        body["previous"] = sha256(data)
        for entry in body["files"]:
            file = root / entry["path"]
            if file.is_file():
                content = file.read_bytes()
                entry.update(bytes=len(content), sha256=sha256(content))
        change(body)
        data = seal(body)
        path.write_bytes(data)


def replace_part(root, name, table):
    pq.write_table(table, root / name)
    reseal(root, lambda body: set_rows(body, name, table.num_rows))


def set_rows(body, name, rows):
    for entry in body["files"]:
        if entry["path"] == name:
            entry["rows"] = rows


def with_column(table, name, values):
    """The table with a column replaced by plain Python values of the same, but nullable, type."""
    kinds = {
        "response_token_ids": pa.list_(pa.list_(pa.int32())),
        "behavior_logprobs": pa.list_(pa.list_(pa.float32())),
        "rewards": pa.list_(pa.float64()),
    }
    index = table.column_names.index(name)
    kind = kinds.get(name, table.schema.field(name).type)
    return table.set_column(index, pa.field(name, kind), pa.array(values, type=kind))


@pytest.mark.parametrize("cut", ["one byte", "half", "all"])
def test_truncated(pool_path, cut):
    for file in all_files(pool_path):
        whole = file.read_bytes()
        keep = {"one byte": len(whole) - 1, "half": len(whole) // 2, "all": 0}[cut]
        file.write_bytes(whole[:keep])
        for check in ("size", "hash"):
            with pytest.raises(DataError, match="damaged") as caught:
                Pool.open(pool_path, check=check)
            assert str(file) in caught.value.message
            assert caught.value.exit_code == 3
        file.write_bytes(whole)
    Pool.open(pool_path)


def test_a_byte_flipped_anywhere(pool_path):
    rng = np.random.default_rng(0)
    for file in all_files(pool_path):
        whole = file.read_bytes()
        for at in (
            range(0, len(whole), 3) if file.suffix == ".json" else rng.integers(0, len(whole), 40)
        ):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(flipped)
            with pytest.raises((DataError, IncompatibleError)) as caught:
                Pool.open(pool_path)
            assert str(file) in caught.value.message
        file.write_bytes(whole)
    Pool.open(pool_path)


def test_a_logprob_changed_after_opening_is_found_when_read(pool_path):
    """Page checksums find what the decoder would accept, also with check="size"."""
    whole = (pool_path / PART).read_bytes()
    chunk = pq.read_metadata(pool_path / PART).row_group(0).column(6)
    assert chunk.path_in_schema == "behavior_logprobs.list.element.list.element"
    end = chunk.data_page_offset + chunk.total_compressed_size
    pool = Pool.open(pool_path, check="size", cache_bytes=0)
    for at in range(end - 60, end):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        (pool_path / PART).write_bytes(flipped)
        with pytest.raises(DataError, match=f"{PART} is damaged"):
            pool.read([0])
    (pool_path / PART).write_bytes(whole)
    pool.read([0])


def test_missing_files(pool_path, tmp_path):
    for file in all_files(pool_path):
        copy = tmp_path / "copy"
        shutil.copytree(pool_path, copy)
        relative = file.relative_to(pool_path)
        (copy / relative).unlink()
        if relative.name == "00000002.json":
            # The last commit missing is an older pool: another hash.
            assert Pool.open(copy).hash != Pool.open(pool_path).hash
        else:
            with pytest.raises(DataError, match="is missing") as caught:
                Pool.open(copy)
            assert str(copy / relative) in caught.value.message
        shutil.rmtree(copy)
    shutil.rmtree(pool_path / "commits")
    with pytest.raises(DataError, match="commits is missing"):
        Pool.open(pool_path)


def test_stray_files_do_not_exist(pool_path, identity):
    before = Pool.open(pool_path)
    strays = ["samples/part-00000009.parquet", "samples/.tmp-part-00000003.parquet"]
    strays += ["commits/.tmp-00000003.json", "grades/exact-1/part-00000003.parquet"]
    kept = ["samples/notes.txt", "commits/00000001.json.bak", "samples/data.json"]
    for name in strays + kept:
        shutil.copy(pool_path / PART, pool_path / name)
    after = Pool.open(pool_path)
    assert (after.hash, len(after)) == (before.hash, 10)
    with PoolWriter.create_or_open(pool_path, identity()):
        assert not [name for name in strays if (pool_path / name).exists()]
        # What is not ours stays.
        assert all((pool_path / name).exists() for name in kept)
    assert Pool.open(pool_path).hash == before.hash


@pytest.mark.parametrize(
    ("value", "found"),
    [(float("nan"), "nan"), (0.5, "0.5"), (float("-inf"), "-inf"), (None, "null")],
)
def test_bad_logprob_in_a_handwritten_file(pool_path, value, found):
    table = pq.read_table(pool_path / PART)
    values = table.column("behavior_logprobs").to_pylist()
    values[2][1][0] = value
    replace_part(pool_path, PART, with_column(table, "behavior_logprobs", values))
    pool = Pool.open(pool_path)
    with pytest.raises(DataError, match=rf"{PART}, row 2, response 1, token 0: .*{found}"):
        pool.read([2])
    with pytest.raises(DataError, match=f"{PART}, row 2"):
        pool.verify()
    assert pool.read([7])[0].group_id == 7


@pytest.mark.parametrize("token", [-1, 151_936, None])
def test_token_outside_the_vocabulary(pool_path, token):
    table = pq.read_table(pool_path / PART)
    values = table.column("response_token_ids").to_pylist()
    values[4][3][-1] = token
    replace_part(pool_path, PART, with_column(table, "response_token_ids", values))
    with pytest.raises(
        DataError, match=f"{PART}, row 4, response 3, token {len(values[4][3]) - 1}"
    ):
        Pool.open(pool_path).read([4])


def test_unequal_lengths(pool_path):
    table = pq.read_table(pool_path / PART)
    values = table.column("behavior_logprobs").to_pylist()
    values[1][2].append(-0.5)
    replace_part(pool_path, PART, with_column(table, "behavior_logprobs", values))
    with pytest.raises(DataError, match=f"{PART}, row 1, response 2: .* behavior log-probs"):
        Pool.open(pool_path).read([1])


def test_stored_length_that_is_not_the_length(pool_path):
    table = pq.read_table(pool_path / PART)
    lengths = table.column("response_lengths").to_pylist()
    lengths[3][0] += 1
    replace_part(pool_path, PART, with_column(table, "response_lengths", lengths))
    with pytest.raises(DataError, match=f"{PART}, row 3, response 0"):
        Pool.open(pool_path).read([3])


def test_prompt_that_is_not_as_long_as_it_says(pool_path):
    table = pq.read_table(pool_path / PART)
    lengths = table.column("prompt_length").to_pylist()
    lengths[3] += 1
    replace_part(pool_path, PART, with_column(table, "prompt_length", lengths))
    with pytest.raises(DataError, match=f"{PART}, row 3: the prompt"):
        Pool.open(pool_path).read([3])


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("response_lengths", lambda v: v.pop(), "K = 4"),
        ("response_lengths", lambda v: v.__setitem__(0, 0), "empty response"),
        ("finish_reason", lambda v: v.__setitem__(1, "abort"), "finish_reason"),
    ],
)
def test_bad_index_columns(pool_path, column, change, message):
    table = pq.read_table(pool_path / PART)
    values = table.column(column).to_pylist()
    change(values[3])
    replace_part(pool_path, PART, with_column(table, column, values))
    with pytest.raises(DataError, match=f"{PART}, row 3: .*{message}"):
        Pool.open(pool_path)


@pytest.mark.parametrize(
    ("reward", "status"),
    [
        (None, "correct"),
        (0.0, "timeout"),
        (float("nan"), "correct"),
        (float("inf"), "incorrect"),
        (1.0, "right"),
    ],
)
def test_reward_that_does_not_fit_its_status(pool_path, reward, status):
    table = pq.read_table(pool_path / GRADES)
    rewards, statuses = table.column("rewards").to_pylist(), table.column("statuses").to_pylist()
    rewards[2][1], statuses[2][1] = reward, status
    table = with_column(with_column(table, "rewards", rewards), "statuses", statuses)
    replace_part(pool_path, GRADES, table)
    with pytest.raises(DataError, match=rf"{GRADES}, row 2, response 1: .*{status}"):
        Pool.open(pool_path)


def test_wrong_k(pool_path):
    table = pq.read_table(pool_path / GRADES)
    rewards = table.column("rewards").to_pylist()
    rewards[0].append(1.0)
    replace_part(pool_path, GRADES, with_column(table, "rewards", rewards))
    with pytest.raises(DataError, match=f"{GRADES}, row 0: rewards has 5 entries.*K = 4"):
        Pool.open(pool_path)


def test_repeated_groups(pool_path):
    other = "samples/part-00000002.parquet"
    shutil.copy(pool_path / PART, pool_path / other)
    reseal(pool_path, lambda body: body["files"][0].update(first_group_id=0))
    with pytest.raises(DataError, match="group 0 is stored more than once in samples"):
        Pool.open(pool_path)


def test_repeated_grades(pool_path):
    other = "grades/exact-1/part-00000002.parquet"
    shutil.copy(pool_path / GRADES, pool_path / other)
    reseal(pool_path, lambda body: body["files"][1].update(first_group_id=0))
    with pytest.raises(DataError, match="group 0 is stored more than once in grades/exact-1"):
        Pool.open(pool_path)


def test_grades_of_a_group_that_is_not_there(pool_path):
    table = pq.read_table(pool_path / GRADES)
    ids = [0, 1, 2, 3, 77]
    pq.write_table(with_column(table, "group_id", ids), pool_path / GRADES)
    reseal(pool_path, lambda body: body["files"][1].update(last_group_id=99))
    with pytest.raises(DataError, match=f"{GRADES}, row 4: group 77 is not in samples"):
        Pool.open(pool_path)


def test_group_outside_the_range_of_its_commit(pool_path):
    table = pq.read_table(pool_path / PART)
    replace_part(pool_path, PART, with_column(table, "group_id", [0, 1, 2, 3, 77]))
    with pytest.raises(DataError, match=f"{PART}, row 4: group 77, but the commit says 0 to 4"):
        Pool.open(pool_path)


def test_rows_that_the_commit_does_not_know(pool_path):
    pq.write_table(pq.read_table(pool_path / PART).slice(0, 3), pool_path / PART)
    reseal(pool_path)
    with pytest.raises(DataError, match=f"{PART} has 3 rows; its commit says 5"):
        Pool.open(pool_path)


def test_columns(pool_path):
    table = pq.read_table(pool_path / PART)
    replace_part(pool_path, PART, table.append_column("extra", pa.array(range(5))))
    with pytest.raises(DataError, match=rf"{PART}: wrong columns \(unknown: \['extra'\]"):
        Pool.open(pool_path)
    replace_part(pool_path, PART, table.drop_columns(["seeds"]))
    with pytest.raises(DataError, match=r"missing: \['seeds'\]"):
        Pool.open(pool_path)
    half = table.column("behavior_logprobs").cast(pa.list_(pa.list_(pa.float16())))
    replace_part(pool_path, PART, table.set_column(6, "behavior_logprobs", half))
    with pytest.raises(DataError, match="'behavior_logprobs' is list<list<halffloat>>; expected"):
        Pool.open(pool_path)


def test_arrow_extension_types_are_refused(pool_path):
    table = pq.read_table(pool_path / PART)
    registered = pa.ExtensionArray.from_storage(pa.json_(), table.column("answer").combine_chunks())
    marks = {b"ARROW:extension:name": b"evil.pickle", b"ARROW:extension:metadata": b"\x80\x04."}
    marked = pa.field("answer", pa.string(), metadata=marks)
    nested = pa.field("seeds", pa.list_(pa.field("element", pa.int64(), metadata=marks)))
    for i, column, field in (
        (3, registered, "answer"),
        (3, table.column("answer"), marked),
        (9, table.column("seeds").cast(nested.type), nested),
    ):
        replace_part(pool_path, PART, table.set_column(i, field, column))
        with pytest.raises(DataError, match=f"{PART}: column .* extension type"):
            Pool.open(pool_path)


def test_text_that_is_not_utf8(pool_path):
    table = pq.read_table(pool_path / PART)
    bad = pa.array([b"ok", b"\xff\xfe", b"ok", b"ok", b"ok"], pa.binary())
    table = table.set_column(2, "question", bad.cast(pa.string(), safe=False))
    replace_part(pool_path, PART, table)
    with pytest.raises(DataError, match=f"{PART} is damaged"):
        Pool.open(pool_path).read([0])


@pytest.mark.parametrize(
    "path",
    [
        "../outside.parquet",
        "samples/../../outside.parquet",
        "/etc/passwd",
        "samples/part-00000001.parquet/../../x",
        "grades/../samples/part-00000001.parquet",
        "grades/exact-1/part-00000001.parquet\n",
        "samples\\part-00000001.parquet",
        "README.md",
    ],
)
def test_unsafe_path_in_a_commit(pool_path, path):
    def change(body):
        body["files"][0]["path"] = path

    reseal(pool_path, change)
    with pytest.raises(DataError, match=r"00000001\.json: files\.0\.path: .*unsafe"):
        Pool.open(pool_path)


@pytest.mark.parametrize("name", [PART, "samples", "grades/exact-1", "pool.json", "commits"])
def test_symbolic_links_are_refused(pool_path, tmp_path, name):
    target = tmp_path / "target"
    (pool_path / name).rename(target)
    (pool_path / name).symlink_to(target)
    with pytest.raises(DataError, match="link"):
        Pool.open(pool_path)


def test_a_commit_that_is_a_link_or_a_pipe(pool_path, tmp_path):
    commit = pool_path / "commits/00000002.json"
    commit.rename(tmp_path / "c.json")
    commit.symlink_to(tmp_path / "c.json")
    with pytest.raises(DataError, match=r"00000002\.json is a symbolic link"):
        Pool.open(pool_path)
    commit.unlink()
    os.mkfifo(commit)
    with pytest.raises(DataError, match="00000002"):
        Pool.open(pool_path)
    commit.unlink()
    (pool_path / PART).unlink()
    os.mkfifo(pool_path / PART)
    with pytest.raises(DataError, match="not a regular file"):
        Pool.open(pool_path)


def test_newer_schema(pool_path, identity):
    for name in ("commits/00000001.json", "pool.json"):
        body = json.loads((pool_path / name).read_text())
        body["schema_version"] = 2
        (pool_path / name).write_text(json.dumps(body))
        for attempt in (Pool.open, lambda p: PoolWriter.create_or_open(p, identity())):
            with pytest.raises(IncompatibleError, match="has schema version 2") as caught:
                attempt(pool_path)
            assert "upgrade" in caught.value.hint
            assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(extra=1), "extra"),
        (lambda b: b.pop("drops"), "drops"),
        (lambda b: b.update(commit=7), "says it is commit 7"),
        (lambda b: b.update(drops={"x": -1}), r"drops\.x"),
        (lambda b: b["files"][0].update(rows=True), r"files\.0\.rows"),
        (lambda b: b["files"].append(b["files"][0]), "added before"),
        (lambda b: b.update(previous="0" * 64), "files of two pools were mixed"),
    ],
)
def test_malformed_commit(pool_path, change, message):
    reseal(pool_path, change)
    with pytest.raises(DataError, match=message) as caught:
        Pool.open(pool_path)
    assert "00000001.json" in caught.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.update(extra=1), "must hold schema_version and identity, and nothing"),
        (
            lambda body: body.update(identity=[]),
            "must hold schema_version and identity, and nothing",
        ),
        (lambda body: body.update(schema_version=0), "schema_version 0 is unknown"),
        (lambda body: body["identity"].update(group_size=1), "group_size is 1; it must be an int"),
    ],
)
def test_malformed_identity(pool_path, change, message):
    body = json.loads((pool_path / "pool.json").read_text())
    del body["checksum"]
    change(body)
    (pool_path / "pool.json").write_bytes(seal(body))
    with pytest.raises(DataError, match=message):
        Pool.open(pool_path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"a": NaN}', '{"a": 1' + "0" * 9999])
def test_json_that_is_not_ours(pool_path, text):
    for name in ("pool.json", "commits/00000002.json"):
        whole = (pool_path / name).read_text()
        (pool_path / name).write_text(text)
        with pytest.raises(DataError, match="damaged"):
            Pool.open(pool_path)
        (pool_path / name).write_text(whole)


def test_commits_of_another_pool(pool_path, tmp_path, build_pool, group, identity):
    other = tmp_path / "other"
    with PoolWriter.create_or_open(other, identity(model={"name": "another"})) as writer:
        writer.append([group(0)], "exact-1")
    shutil.copy(other / "pool.json", pool_path / "pool.json")
    with pytest.raises(DataError, match=r"00000001\.json does not follow"):
        Pool.open(pool_path)


def test_paths_that_hold_no_pool(tmp_path, pool_path, identity):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="pool"):
            Pool.open(path)
    with pytest.raises(ConfigError, match="no grades of verifier 'x'"):
        Pool.open(pool_path, "x")
    with pytest.raises(ConfigError, match="allowed: 'size', 'hash'"):
        Pool.open(pool_path, check="quick")
    with pytest.raises(ConfigError, match="neither a pool nor empty"):
        PoolWriter.create_or_open(pool_path.parent, identity())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        PoolWriter.create_or_open(tmp_path / "file", identity())
    (pool_path / "pool.json").unlink()
    with pytest.raises(DataError, match="but the pool has commits"):
        PoolWriter.create_or_open(pool_path, identity())
    with pytest.raises(DataError, match="group 99 is not in"):
        Pool.open(shutil.copytree(build_copy(tmp_path, identity), tmp_path / "c")).read([99])


def build_copy(tmp_path, identity):
    PoolWriter.create_or_open(tmp_path / "fresh", identity()).close()
    return tmp_path / "fresh"
