"""Tensor in, tensor out: masked sums, group statistics, divergences, ratios, log-weights, windows.

Nothing here knows what a policy or a pool is. Import from the modules (`from
offline_rlvr.numerics.groups import centered`), which keeps the name of the idea at the place of
use.
"""
