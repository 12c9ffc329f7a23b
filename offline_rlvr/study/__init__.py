"""Studies: methods x seeds on one pool, each an ordinary run that the same command continues."""

from offline_rlvr.study.study import run_study

__all__ = ["run_study"]
