"""Offline fixed-pool reinforcement learning with verifiable rewards.

Build a rollout pool once, train on it exactly once per group, study the drift.
Importing this package imports neither torch nor transformers; take what you need from the
sub-packages.
"""

from importlib.metadata import version

__version__ = version("offline-rlvr")
