"""Slices of one job become the pool that the job would have made at once."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.pool import Pool, PoolWriter, funnel
from offline_rlvr.pool.merge import merge
from offline_rlvr.pool.opening import differences
from offline_rlvr.pool.repair import repair
from offline_rlvr.pool.show_damage import format_merged
from offline_rlvr.records import Verdict

RIGHT = [Verdict("correct")] * 4


@pytest.fixture
def slices(tmp_path, group, identity):
    """Three slices of groups 0 to 11; correct counts 0 1 2 3 4 0 1 ...; two commits each."""
    paths = []
    for number in (1, 2, 3):
        path = tmp_path / f"slice {number}"
        own = [group(i, correct=i % 5) for i in range(number - 1, 12, 3)]
        with PoolWriter.create_or_open(path, identity(slice=[number, 3])) as writer:
            writer.append(own[:3], "exact-1", {"prompt_too_long": number})
            writer.append(own[3:], "exact-1", next_group_id=12)
        paths.append(path)
    return paths


def test_three_slices_are_one_pool(slices, tmp_path, group, identity):
    before = [Pool.open(path).hash for path in slices]
    merged = merge(tmp_path / "new folder/all", slices[::-1])
    assert (merged.groups, merged.slices, merged.of) == (12, [1, 2, 3], 3)
    assert (merged.ungraded, merged.in_use) == ({}, {})
    pool = Pool.open(tmp_path / "new folder/all")
    pool.verify()
    assert pool.commit == 6
    assert pool.drops == {"prompt_too_long": 6}
    assert differences(pool.identity, identity()) == []
    assert "slice" not in pool.identity
    # The same as built at once: every value of every group.
    with PoolWriter.create_or_open(tmp_path / "at once", identity()) as writer:
        writer.append([group(i, correct=i % 5) for i in range(12)], "exact-1", pool.drops)
    whole = Pool.open(tmp_path / "at once")
    assert pool.index.group_ids.tolist() == list(range(12))
    assert funnel(pool) == funnel(whole)
    for one, other in zip(pool.read(range(12)), whole.read(range(12)), strict=True):
        assert repr(one) == repr(other)
    card = (pool.path / "README.md").read_text()
    assert "# all\n" in card
    assert pool.hash in card
    assert [Pool.open(path).hash for path in slices] == before
    assert [path.name for path in (tmp_path / "new folder").iterdir()] == ["all"]
    # In any order the same pool, and it grows as any other.
    merge(tmp_path / "again", [slices[1], slices[2], slices[0]])
    assert Pool.open(tmp_path / "again").hash == pool.hash
    with PoolWriter.create_or_open(pool.path, identity()) as writer:
        assert writer.next_group_id == 12
        writer.append([group(12)], "exact-1")


def test_missing_slices(slices, tmp_path):
    with pytest.raises(ConfigError, match="missing slices: 1/3, 3/3") as caught:
        merge(tmp_path / "all", slices[1:2])
    assert "--allow-missing" in caught.value.hint
    merged = merge(tmp_path / "all", slices[::2], allow_missing=True)
    assert (merged.groups, merged.slices) == (8, [1, 3])
    assert Pool.open(tmp_path / "all").index.group_ids.tolist() == [0, 2, 3, 5, 6, 8, 9, 11]


def test_grades_come_along(slices, tmp_path):
    ids = [Pool.open(path).index.group_ids.tolist() for path in slices]
    for path, own in zip(slices[:2], ids[:2], strict=True):
        with PoolWriter.reopen(path) as writer:
            writer.append_grades("other", dict.fromkeys(own, RIGHT))
    merged = merge(tmp_path / "some", slices)
    assert merged.ungraded == {"other": 4}
    assert merged.in_use == {1: "other", 2: "other", 3: "exact-1"}
    text = format_merged(tmp_path / "some", merged)
    assert "grades of other are incomplete: 4 groups have none" in text
    assert "slice 3/3 used the grades of exact-1" in text
    assert Pool.open(tmp_path / "some").verifier_id == "exact-1"
    assert Pool.open(tmp_path / "some", "other").index.correct.sum() == 8 * 4
    with PoolWriter.reopen(slices[2]) as writer:
        writer.append_grades("other", dict.fromkeys(ids[2], RIGHT))
    assert merge(tmp_path / "every", slices).ungraded == {}
    assert Pool.open(tmp_path / "every").verifier_id == "other"
    # All slices went back to the first grades: so does the merged pool.
    for path in slices:
        with PoolWriter.reopen(path) as writer:
            writer.use_grades("exact-1")
    merge(tmp_path / "back", slices)
    assert Pool.open(tmp_path / "back").verifier_id == "exact-1"


def test_a_repaired_slice_brings_only_what_is_whole(slices, tmp_path):
    (slices[1] / "samples/part-00000001.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"slice 2.*part-00000001") as caught:
        merge(tmp_path / "all", slices)
    assert "pool repair" in caught.value.hint
    repair(slices[1])
    assert merge(tmp_path / "all", slices).groups == 9
    Pool.open(tmp_path / "all").verify()
    assert Pool.open(tmp_path / "all").index.group_ids.tolist() == [0, 2, 3, 5, 6, 8, 9, 10, 11]


def test_damage_of_the_same_size_is_found_while_copying(slices, tmp_path):
    part = slices[2] / "samples/part-00000002.parquet"
    whole = part.read_bytes()
    for damaged in (whole[:-1] + b"!", whole[:99] + bytes([whole[99] ^ 1]) + whole[100:]):
        part.write_bytes(damaged)
        with pytest.raises(DataError, match=r"slice 3/samples/part-00000002.parquet is damaged"):
            merge(tmp_path / "all", slices)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["slice 1", "slice 2", "slice 3"]


def test_what_cannot_be_merged(slices, tmp_path, pool_path, group, identity):
    with pytest.raises(ConfigError, match="exists already"):
        merge(slices[0], slices)
    with pytest.raises(ConfigError, match="is not a slice"):
        merge(tmp_path / "all", [*slices, pool_path])
    with pytest.raises(ConfigError, match="no slice was named"):
        merge(tmp_path / "all", [])
    shutil.copytree(slices[0], tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"slice 1 and .*copy are both 1/3"):
        merge(tmp_path / "all", [*slices, tmp_path / "copy"])
    for name, changes, words in (
        ("seed", {"slice": [2, 3], "seed": 7}, r"seed: \(absent\) -> 7"),
        ("of", {"slice": [2, 4]}, "number of slices: 3 -> 4"),
    ):
        PoolWriter.create_or_open(tmp_path / name, identity(**changes)).close()
        with pytest.raises(IncompatibleError, match=words):
            merge(tmp_path / "all", [slices[0], tmp_path / name])
    # Other versions of the libraries are no other job.
    identity_ = identity(slice=[2, 3], versions={"torch": "3"}, overlap={"aime24": 1})
    with PoolWriter.create_or_open(tmp_path / "versions", identity_) as writer:
        writer.append([group(1)], "exact-1")
    merge(tmp_path / "with versions", [slices[0], tmp_path / "versions"], allow_missing=True)
    for number, bad in enumerate(([0, 3], [4, 3], [1], "1/3", [1, 3, 3])):
        path = tmp_path / f"bad {number}"
        PoolWriter.create_or_open(path, identity(slice=bad)).close()
        with pytest.raises(ConfigError, match="is not a slice"):
            merge(tmp_path / "all", [path])
    with PoolWriter.create_or_open(tmp_path / "foreign", identity(slice=[2, 3])) as writer:
        writer.append([group(1), group(3)], "exact-1")
    with pytest.raises(DataError, match="is slice 2/3, but it has group 3"):
        merge(tmp_path / "all", [slices[0], tmp_path / "foreign", slices[2]])
    assert not (tmp_path / "all").exists()


def test_part_files_are_copied_as_they_are(slices, tmp_path):
    merge(tmp_path / "all", slices)
    commits = sorted((tmp_path / "all/commits").iterdir())
    merged = [json.loads(path.read_text())["files"][0] for path in commits]
    original = [
        json.loads((path / f"commits/0000000{i}.json").read_text())["files"][0]
        for path in slices
        for i in (1, 2)
    ]
    assert [f["sha256"] for f in merged] == [f["sha256"] for f in original]
    assert [f["path"] for f in merged] == [f"samples/part-0000000{i}.parquet" for i in range(1, 7)]
    assert pq.read_metadata(tmp_path / "all" / merged[4]["path"]).num_rows == 3


def test_the_verb(command, slices, tmp_path):
    code, output = command("pool", "merge", tmp_path / "all", *slices[:2])
    assert (code, "missing slices: 3/3" in output) == (2, True), output
    code, output = command("pool", "merge", tmp_path / "all", *slices)
    assert (code, "12 groups from 3 of 3 slices" in output) == (0, True), output
    code, output = command("pool", "verify", tmp_path / "all")
    assert code == 0, output
