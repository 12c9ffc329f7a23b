"""Pools on disk: write by atomic commits, read by group id, select, describe."""

from offline_rlvr.pool.blocks import GroupArrays
from offline_rlvr.pool.index import STATUS_NAMES, PoolIndex
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.summary import funnel
from offline_rlvr.pool.writer import PoolWriter

__all__ = ["STATUS_NAMES", "GroupArrays", "Pool", "PoolIndex", "PoolWriter", "funnel"]
