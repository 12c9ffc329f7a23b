"""An adaptive horizon on the token tree, by exact expectations: as far as its bound lets it."""

from dataclasses import replace
from itertools import islice

import pytest

from offline_rlvr.lab.bench import Bench
from offline_rlvr.lab.proximal_kl import full_tail
from offline_rlvr.lab.tree import Tree, totals_of
from offline_rlvr.numerics.groups import token_variance

STEPS = 60


@pytest.fixture(scope="module")
def bench():
    return Bench(Tree())


def variance(bench, objective, logits):
    """Expected over groups that the stale behavior draws."""
    drawn = bench.setting("stale").behavior(logits)
    batch, chance = bench.tree.groups(logits, drawn, bench.reference, bench.size)
    c = objective(batch, totals_of(batch)).coefficients
    return float((chance * token_variance(c, batch.response_mask)).sum())


def adaptive(bench, bound):
    """Distance to the Gibbs policy, and horizons, of a flow that adapts after every step."""
    objective = full_tail(bench.beta, horizon="adaptive", variance_bound=bound)
    logits, horizons = bench.reference, []
    for _ in range(STEPS):
        horizons.append(objective.adaptive_horizon)
        longer = replace(objective, adaptive_horizon=2 * objective.adaptive_horizon)
        metrics = {
            "objective/coefficient_variance": variance(bench, objective, logits),
            "objective/coefficient_variance_2h": variance(bench, longer, logits),
        }
        logits = next(islice(bench.setting("stale").flow(objective, logits), 1, None))
        objective = replace(objective, **objective.adapted(metrics))
    return bench.tree.total_variation(logits, bench.target), horizons


def fixed(bench, horizon):
    objective = full_tail(bench.beta, horizon=horizon)
    flow = bench.setting("stale").flow(objective, bench.reference)
    logits = next(islice(flow, STEPS, None))
    return bench.tree.total_variation(logits, bench.target), variance(bench, objective, logits)


def test_with_a_wide_bound_it_comes_as_close_as_the_full_tail(bench):
    """Responses have three tokens: 4 is the full tail, and no longer horizon is tried."""
    distance, horizons = adaptive(bench, 100.0)
    assert horizons[:4] == [1, 1, 2, 4]  # at the reference every horizon is the same
    assert set(horizons[3:]) == {4}
    assert distance == pytest.approx(fixed(bench, None)[0], rel=0.1)


def test_with_a_narrow_bound_it_stays_with_the_current_token(bench):
    distance, horizons = adaptive(bench, 1e-3)
    assert set(horizons) == {1}
    assert distance == pytest.approx(fixed(bench, 1)[0], rel=1e-9)


def test_near_the_optimum_a_longer_horizon_has_the_smaller_variance(bench):
    """There the full tail's cost cancels the advantage: a bound does not keep one from it."""
    distances, variances = zip(*(fixed(bench, horizon) for horizon in (1, 2, None)), strict=True)
    assert list(distances) == sorted(distances, reverse=True)
    assert list(variances) == sorted(variances, reverse=True)
