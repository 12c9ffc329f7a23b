"""A damaged pool: every damage named, the rest kept, nothing deleted, old pools byte for byte."""

import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.errors import BusyError, ConfigError, DataError
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool.commits import seal, sha256
from offline_rlvr.pool.repair import inspect, repair
from offline_rlvr.pool.show_damage import format_damage
from offline_rlvr.records import Verdict

SECOND = "samples/part-00000002.parquet"
GRADES = "grades/exact-1/part-00000002.parquet"
RIGHT = [Verdict("correct")] * 4


def contents(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


@pytest.fixture
def graded_twice(pool_path):
    """Also graded by `other`, in two parts that do not match the parts of the samples."""
    with PoolWriter.reopen(pool_path) as writer:
        writer.append_grades("other", dict.fromkeys(range(7), RIGHT))
        writer.append_grades("other", dict.fromkeys(range(7, 10), RIGHT))
        writer.finish()
    return pool_path


def test_a_whole_pool_is_left_as_it_is(graded_twice):
    before = contents(graded_twice)
    for look in (inspect, repair):
        damage = look(graded_twice)
        assert (damage.reasons, damage.lost, len(damage.kept)) == ({}, 0, 10)
        assert "is whole: 10 groups" in format_damage(graded_twice, damage)
    assert contents(graded_twice) == before


def test_damaged_samples_go_with_the_grades_of_their_groups(graded_twice, group):
    before = contents(graded_twice)
    (graded_twice / SECOND).write_bytes(before[SECOND][:-1])
    looked = inspect(graded_twice)
    assert list(looked.reasons) == [SECOND]
    assert looked.kept.tolist() == [0, 1, 2, 3, 4]
    assert contents(graded_twice).keys() == before.keys(), "looking changes nothing"
    damage = repair(graded_twice)
    assert damage.reasons == looked.reasons
    assert (damage.groups, damage.lost, damage.ungraded) == (10, 5, {})
    pool = Pool.open(graded_twice)
    pool.verify()
    assert pool.index.group_ids.tolist() == [0, 1, 2, 3, 4]
    assert pool.verifier_id == "other", "a repair does not change whose grades count"
    assert Pool.open(graded_twice, "exact-1").index.correct.sum(1).tolist() == [0, 1, 2, 3, 4]
    after = contents(graded_twice)
    moved = [SECOND, GRADES]
    moved += [f"grades/other/part-0000000{i}.parquet" for i in (3, 4)]
    assert not after.keys() & set(moved)
    assert {name: after[f"quarantine/{name}"] for name in moved[1:]} == {
        name: before[name] for name in moved[1:]
    }
    assert after[f"quarantine/{SECOND}"] == before[SECOND][:-1]
    rewritten = pq.read_table(graded_twice / "grades/other/part-00000005.parquet")
    assert rewritten.column("group_id").to_pylist() == [0, 1, 2, 3, 4]
    commit = json.loads((graded_twice / "commits/00000005.json").read_text())
    assert sorted(commit["removes"]) == sorted(moved)
    assert "5 groups of 4 responses" in (graded_twice / "README.md").read_text()
    # What is lost can be sampled again, under the old ids.
    with PoolWriter.reopen(graded_twice) as writer:
        assert writer.next_group_id == 10
        writer.append([group(i, correct=1) for i in range(5, 10)], "exact-1")
    assert Pool.open(graded_twice).index.group_ids.tolist() == list(range(10))


def test_damaged_grades_leave_their_groups_ungraded(graded_twice):
    part = graded_twice / "grades/other/part-00000003.parquet"
    part.write_bytes(b"")
    damage = repair(graded_twice)
    assert (damage.lost, damage.ungraded) == (0, {"other": 7})
    assert Pool.open(graded_twice).verifier_id == "exact-1", "the only ones with all groups"
    with PoolWriter.reopen(graded_twice) as writer:
        assert writer.graded_group_ids("other") == {7, 8, 9}
        writer.append_grades("other", dict.fromkeys(range(7), RIGHT))
    assert Pool.open(graded_twice).verifier_id == "other"


@pytest.mark.parametrize("name", [SECOND, GRADES])
@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe", "flipped", "rows"])
def test_every_kind_of_damage(pool_path, tmp_path, name, kind):
    file = pool_path / name
    whole = file.read_bytes()
    if kind == "flipped":
        file.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    elif kind == "rows":
        rewrite(pool_path, name)
    else:
        file.unlink()
    if kind == "link":
        (tmp_path / "target").write_bytes(whole)
        file.symlink_to(tmp_path / "target")
    elif kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    damage = repair(pool_path)
    assert list(damage.reasons) == [name]
    assert name in damage.reasons[name]
    Pool.open(pool_path).verify()
    assert os.path.lexists(pool_path / "quarantine" / name) == (kind != "missing")
    assert not os.path.lexists(file)
    if kind == "link":
        assert (tmp_path / "target").read_bytes() == whole, "the link moves, not its target"
    assert repair(pool_path).reasons == {}


def rewrite(root, name):
    """A part whose hash fits its commit, but not its rows: K is wrong in one of them."""
    column = "finish_reason" if name == SECOND else "statuses"
    table = pq.read_table(root / name)
    values = table.column(column).to_pylist()
    values[1].append(values[1][0])
    at = table.column_names.index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(at, field, pa.array(values, field.type)), root / name)
    path = root / "commits/00000002.json"
    body = json.loads(path.read_text())
    body.pop("checksum")
    for entry in body["files"]:
        content = (root / entry["path"]).read_bytes()
        entry.update(bytes=len(content), sha256=sha256(content))
    path.write_bytes(seal(body))


def test_everything_damaged_is_an_empty_pool(pool_path, group):
    for part in pool_path.rglob("*.parquet"):
        part.unlink()
    damage = repair(pool_path)
    assert len(damage.reasons) == 4
    assert damage.lost == damage.groups == 10
    pool = Pool.open(pool_path)
    assert (len(pool), pool.verifier_id) == (0, None)
    with PoolWriter.reopen(pool_path) as writer:
        writer.append([group(0)], "exact-1")
    assert Pool.open(pool_path).verifier_id == "exact-1"


@pytest.mark.parametrize("name", ["pool.json", "commits/00000001.json"])
def test_identity_and_commits_cannot_be_repaired(pool_path, name):
    (pool_path / SECOND).write_bytes(b"")
    (pool_path / name).write_bytes(b"{}")
    for look in (inspect, repair):
        with pytest.raises(DataError, match=name) as caught:
            look(pool_path)
        assert caught.value.exit_code == 3
        assert caught.value.hint == "restore it from a copy of the pool"


@pytest.mark.parametrize("folder", ["samples", "grades", "grades/exact-1"])
def test_a_folder_that_is_a_link_is_not_touched(pool_path, tmp_path, folder):
    (pool_path / folder).rename(tmp_path / "elsewhere")
    (pool_path / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="symbolic link to a folder"):
        repair(pool_path)
    assert list((tmp_path / "elsewhere").rglob("part-*"))


def test_stray_files_and_earlier_quarantine_stay(pool_path):
    (pool_path / SECOND).write_bytes(b"first")
    repair(pool_path)
    (pool_path / "samples/notes.txt").write_text("mine")
    # Somebody copies the file back, twice: set aside each time, under another name.
    for again in (b"second", b"third"):
        (pool_path / SECOND).write_bytes(again)
        assert len(Pool.open(pool_path)) == 5
        assert repair(pool_path).reasons == {}
    found = sorted((pool_path / "quarantine/samples").iterdir())
    assert [path.read_bytes() for path in found] == [b"first", b"second", b"third"]
    assert (pool_path / "samples/notes.txt").read_text() == "mine"


def test_repair_needs_a_pool_and_the_lock(pool_path, tmp_path):
    with pytest.raises(ConfigError, match="no pool at"):
        repair(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not a pool"):
        repair(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    with PoolWriter.reopen(pool_path):
        assert inspect(pool_path).reasons == {}
        with pytest.raises(BusyError):
            repair(pool_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(removes=["samples/part-00000007.parquet"]), "is not in the pool"),
        (lambda b: b.update(removes=[SECOND, SECOND]), "is not in the pool"),
        (lambda b: b.update(removes=["../x"]), r"removes\.0: .*unsafe"),
        (lambda b: b.update(verifier_in_use="a/b"), "verifier_in_use"),
    ],
)
def test_malformed_repairs(pool_path, change, message):
    (pool_path / SECOND).unlink()
    repair(pool_path)
    path = pool_path / "commits/00000003.json"
    body = json.loads(path.read_text())
    body.pop("checksum")
    change(body)
    path.write_bytes(seal(body))
    with pytest.raises(DataError, match=message):
        Pool.open(pool_path)


def test_a_pool_without_repairs_has_the_format_it_always_had(pool_path):
    keys = {"schema_version", "commit", "previous", "files", "drops", "next_group_id", "checksum"}
    for path in (pool_path / "commits").iterdir():
        assert json.loads(path.read_text()).keys() == keys


def test_the_verb(command, own_pool, tmp_path):
    code, output = command("pool", "repair", own_pool, "--quarantine")
    assert (code, "is whole" in output) == (0, True), output
    for name in ("samples/part-00000001.parquet", "samples/part-00000002.parquet"):
        (own_pool / name).write_bytes(b"")
    code, output = command("pool", "stats", own_pool)
    assert (code, "offline-rlvr pool repair POOL" in output) == (3, True), output
    before = contents(own_pool)
    code, output = command("pool", "repair", own_pool)
    assert code == 3, output
    assert "2 damaged files" in output
    assert output.count("its commit says") == 2
    assert "lost with them: 32 of" in output
    assert f"pool repair {own_pool} --quarantine" in output
    assert contents(own_pool) == before
    code, output = command("pool", "repair", own_pool, "--quarantine")
    assert code == 0, output
    assert f"pool build CONFIG -o {own_pool}" in output
    code, output = command("pool", "verify", own_pool)
    assert code == 0, output


def test_a_copy_restores_what_a_repair_would_lose(pool_path, tmp_path):
    """The advice of the error message, followed."""
    shutil.copytree(pool_path, tmp_path / "copy")
    (pool_path / SECOND).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        Pool.open(pool_path)
    assert "restore it from a copy" in caught.value.hint
    shutil.copy(tmp_path / "copy" / SECOND, pool_path / SECOND)
    assert inspect(pool_path).reasons == {}
