"""The committed pool: whole, and still what the built-in model says."""

import pathlib

from offline_rlvr.pool import Pool, selection
from offline_rlvr.trainer.recheck import recheck

TINY = pathlib.Path(__file__).parents[2] / "pools" / "tiny"


def test_the_committed_pool_is_whole_and_belongs_to_the_built_in_model():
    pool = Pool.open(TINY)
    pool.verify()
    training, probe = selection.training(pool, probe_groups=8)
    assert (len(pool), len(probe)) == (64, 8)
    assert len(training) >= 32
    noise = recheck(pool, groups=8, max_noise=1e-4)
    assert noise.largest < 1e-3
