"""The real builder after a repair and after a merge: it samples what is missing, and only that."""

import numpy as np

from offline_rlvr.config import load_config
from offline_rlvr.pool import Pool
from offline_rlvr.pool.build import Slice, build_pool
from offline_rlvr.pool.merge import merge
from offline_rlvr.pool.repair import repair


def same_groups(pool, other, ids):
    for ours, theirs in zip(pool.read(ids), other.read(ids), strict=True):
        assert ours.texts == theirs.texts
        assert ours.statuses == theirs.statuses
        assert all(map(np.array_equal, ours.response_token_ids, theirs.response_token_ids))


def test_a_repaired_pool_is_filled_with_the_same_groups(small_job, small_pool, own_pool):
    before = Pool.open(small_pool)
    (own_pool / "samples/part-00000001.parquet").write_bytes(b"")
    damage = repair(own_pool)
    assert damage.lost == 16
    assert Pool.open(own_pool).index.group_ids.tolist() == damage.kept.tolist()
    filled = build_pool(load_config(small_job), own_pool)
    assert filled.index.group_ids[:16].tolist() == list(range(16)), "the lost ones, sampled again"
    same_groups(filled, before, range(16))
    filled.verify()


def test_merged_slices_are_gone_on_with_as_one_pool(small_job, small_pool, tmp_path, command):
    config = load_config(small_job)
    for part in (Slice(1, 3), Slice(3, 3)):
        build_pool(config, tmp_path / f"part-{part.index}", part)
    merged = merge(
        tmp_path / "pool", [tmp_path / "part-3", tmp_path / "part-1"], allow_missing=True
    )
    assert merged.slices == [1, 3]
    pool = Pool.open(tmp_path / "pool")
    assert not np.any(pool.index.group_ids % 3 == 1)
    whole = build_pool(config, tmp_path / "pool")
    assert whole.index.mixed.sum() >= 27, "24 and the probe's 3, in one pool"
    assert np.any(whole.index.group_ids % 3 == 1), "the missing slice's are drawn, too"
    both = np.intersect1d(whole.index.group_ids, Pool.open(small_pool).index.group_ids)
    same_groups(whole, Pool.open(small_pool), both)
    code, output = command(
        "train", small_job, "--pool", tmp_path / "pool", "--run", tmp_path / "run"
    )
    assert code == 0, output
