"""What goes into a pool comes out of it, bit for bit, with our code and without."""

import json

import duckdb
import numpy as np
import polars
import pyarrow.parquet as pq
import pytest

from offline_rlvr.pool import Pool, PoolWriter, funnel
from offline_rlvr.records import Response, Verdict


def test_round_trip_is_bit_exact(pool_path, group):
    pool = Pool.open(pool_path)
    asked = [7, 0, 9, 3, 7]
    for wanted, got in zip(asked, pool.read(asked), strict=True):
        expected = group(wanted, correct=wanted % 5)
        assert got.group_id == wanted
        assert (got.problem_id, got.question, got.answer) == (
            expected.problem.id,
            expected.problem.question,
            expected.problem.answer,
        )
        assert got.prompt_token_ids.dtype == np.int32
        assert tuple(got.prompt_token_ids.tolist()) == expected.prompt_token_ids
        for i, response in enumerate(expected.responses):
            assert got.response_token_ids[i].dtype == np.int32
            assert tuple(got.response_token_ids[i].tolist()) == response.token_ids
            want = np.array(response.behavior_logprobs, np.float32)
            assert got.behavior_logprobs[i].dtype == np.float32
            assert got.behavior_logprobs[i].tobytes() == want.tobytes()
        assert got.texts == [r.text for r in expected.responses]
        assert got.finish_reasons == ["stop"] * 4
        assert got.seeds == [r.seed for r in expected.responses]
        assert got.rewards.tolist() == [v.reward for v in expected.verdicts]
        assert got.statuses == [v.status for v in expected.verdicts]


def test_values_that_lossy_types_would_change(tmp_path, group, build_pool):
    tricky = Response((151_645, 0, 151_935), (-1e-8, -33.37, -70_000.0), "x", "length")
    build_pool(tmp_path / "p", [group(0, responses=(tricky,) * 4)])
    got = Pool.open(tmp_path / "p").read([0])[0]
    assert got.response_token_ids[0].tolist() == [151_645, 0, 151_935]
    assert got.behavior_logprobs[0].tolist() == np.float32([-1e-8, -33.37, -70_000.0]).tolist()
    assert got.behavior_logprobs[0][0] < 0
    assert got.seeds == [None] * 4


def test_index(pool_path, group):
    pool = Pool.open(pool_path)
    index = pool.index
    groups = [group(i, correct=i % 5) for i in range(10)]
    assert len(pool) == 10
    assert pool.commit == 2
    assert pool.group_size == 4
    assert index.group_ids.dtype == np.int64
    assert index.group_ids.tolist() == list(range(10))
    lengths = [[len(r.token_ids) for r in g.responses] for g in groups]
    assert index.response_lengths.dtype == np.int32
    assert index.response_lengths.tolist() == lengths
    assert index.prompt_lengths.tolist() == [len(g.prompt_token_ids) for g in groups]
    assert index.rewards.tolist() == [[v.reward for v in g.verdicts] for g in groups]
    assert index.truncated.dtype == bool
    assert not index.truncated.any()


def test_ids_in_any_order_over_commits(tmp_path, group, build_pool):
    path = build_pool(tmp_path / "p", [group(9), group(4)], [group(7), group(1)])
    pool = Pool.open(path)
    assert pool.index.group_ids.tolist() == [1, 4, 7, 9]
    assert [g.problem_id for g in pool.read([9, 1, 7])] == ["p-9", "p-1", "p-7"]


def test_hash_follows_content_not_place(pool_path, tmp_path, group, identity):
    before = Pool.open(pool_path).hash
    moved = tmp_path / "elsewhere"
    pool_path.rename(moved)
    assert Pool.open(moved).hash == before
    with PoolWriter.create_or_open(moved, identity()) as writer:
        writer.append([group(10)], "exact-1")
    assert Pool.open(moved).hash != before


def test_parquet_encoding_and_row_groups(tmp_path, group, build_pool):
    path = build_pool(tmp_path / "p", [group(i) for i in range(130)])
    part = pq.ParquetFile(path / "samples/part-00000001.parquet", page_checksum_verification=True)
    assert [part.metadata.row_group(i).num_rows for i in range(part.num_row_groups)] == [64, 64, 2]
    columns = [part.metadata.row_group(0).column(i) for i in range(part.metadata.num_columns)]
    logprobs = next(
        c for c in columns if c.path_in_schema == "behavior_logprobs.list.element.list.element"
    )
    assert "BYTE_STREAM_SPLIT" in logprobs.encodings
    assert not logprobs.has_dictionary_page
    assert {c.compression for c in columns} == {"ZSTD"}
    assert [g.group_id for g in Pool.open(path).read([129, 0, 64, 63])] == [129, 0, 64, 63]


def test_long_responses_make_small_row_groups(tmp_path, group, build_pool):
    long = Response((5,) * 100_000, (-0.5,) * 100_000, "x", "stop")
    path = build_pool(tmp_path / "p", [group(i, responses=(long,) * 4) for i in range(8)])
    part = pq.ParquetFile(path / "samples/part-00000001.parquet")
    # 3.2 MB a group against a row group of about 8 MiB
    assert part.metadata.row_group(0).num_rows == 2


def test_opens_with_datasets(pool_path, identity, tmp_path, monkeypatch):
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        writer.finish()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    samples = datasets.load_dataset(str(pool_path), split="train", cache_dir=str(tmp_path / "hf"))
    assert samples["group_id"][:] == list(range(10))
    got = Pool.open(pool_path).read([3])[0]
    assert samples[3]["response_token_ids"] == [a.tolist() for a in got.response_token_ids]
    assert samples[3]["behavior_logprobs"] == [a.tolist() for a in got.behavior_logprobs]
    grades = datasets.load_dataset(
        str(pool_path), "grades-exact-1", split="train", cache_dir=str(tmp_path / "hf")
    )
    assert grades[1]["rewards"] == [1.0, 0.0, 0.0, 0.0]


def test_opens_with_duckdb_and_polars(pool_path):
    query = f"""
        select s.group_id, list_sum(g.rewards), len(s.response_token_ids[1])
        from '{pool_path}/samples/*.parquet' s
        join '{pool_path}/grades/exact-1/*.parquet' g using (group_id) order by 1
    """
    lengths = Pool.open(pool_path).index.response_lengths
    expected = [(i, float(i % 5), int(lengths[i, 0])) for i in range(10)]
    assert duckdb.sql(query).fetchall() == expected
    frame = polars.read_parquet(pool_path / "samples/*.parquet")
    got = frame.sort("group_id")["behavior_logprobs"].to_list()
    stored = Pool.open(pool_path).read(range(10))
    assert got == [[a.tolist() for a in g.behavior_logprobs] for g in stored]


def test_cache_stays_within_its_budget(tmp_path, group, build_pool):
    path = build_pool(tmp_path / "p", [group(i) for i in range(640)])
    full = Pool.open(path)
    full.read(range(640))
    one = full.cached_bytes // 10
    small = Pool.open(path, cache_bytes=int(2.5 * one))
    for i in range(0, 640, 7):
        assert small.read([i])[0].group_id == i
        assert 0 < small.cached_bytes <= 2.5 * one
    tiny = Pool.open(path, cache_bytes=0)
    assert [g.group_id for g in tiny.read([600, 3])] == [600, 3]
    assert tiny.cached_bytes < 1.5 * one


def test_regrading_adds_a_verifier(pool_path, identity):
    first = Pool.open(pool_path)
    verdicts = {i: [Verdict("timeout")] + [Verdict("correct")] * 3 for i in range(4)}
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        writer.append_grades("other-2", verdicts)
        assert writer.graded_group_ids("other-2") == {0, 1, 2, 3}
        assert writer.graded_group_ids("exact-1") == set(range(10))
    assert Pool.open(pool_path).verifier_id == "exact-1", "the other one has not graded all"
    pool = Pool.open(pool_path, "other-2")
    assert pool.verifier_id == "other-2"
    assert pool.verifier_ids == ["exact-1", "other-2"]
    assert np.isnan(pool.index.rewards[0, 0])
    assert pool.read([0])[0].statuses == ["timeout", "correct", "correct", "correct"]
    assert pool.read([9])[0].statuses == ["ungraded"] * 4
    assert funnel(pool)["unscored_groups"] == 10
    again = Pool.open(pool_path, "exact-1")
    assert np.array_equal(again.index.rewards, first.index.rewards)
    assert pool.hash != first.hash


def test_empty_pool_and_drops_only(tmp_path, identity, group):
    with PoolWriter.create_or_open(tmp_path / "p", identity()) as writer:
        assert writer.next_group_id == 0
        assert writer.append([], "exact-1", {"prompt_too_long": 3}, next_group_id=3) == 1
        assert writer.append([group(5)], "exact-1", {"prompt_too_long": 1, "duplicate": 2}) == 2
        assert writer.append([], "exact-1", {"duplicate": 1}, next_group_id=9) == 3
        writer.finish()
    with PoolWriter.create_or_open(tmp_path / "p", identity()) as writer:
        assert writer.next_group_id == 9
        assert writer.commit == 3
        assert writer.committed_group_ids.tolist() == [5]
        assert writer.drops == {"prompt_too_long": 4, "duplicate": 3}
    empty = PoolWriter.create_or_open(tmp_path / "q", identity())
    card = empty.finish()
    empty.close()
    assert "configs:" not in card.read_text()
    pool = Pool.open(tmp_path / "q")
    assert (len(pool), pool.commit, pool.verifier_id) == (0, 0, None)
    assert pool.read([]) == []
    assert pool.index.rewards.shape == (0, 4)


def test_versions_are_recorded_but_not_compared(pool_path, identity):
    with PoolWriter.create_or_open(pool_path, identity(versions={"torch": "9"})):
        pass
    stored = json.loads((pool_path / "pool.json").read_text())
    assert stored["identity"]["versions"] == {"torch": "2.13"}
    assert stored["schema_version"] == 1
