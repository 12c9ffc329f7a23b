"""Every objective's declared `optimum`, measured."""

import pytest

from offline_rlvr.objectives import load, names, parameters

BETA = 0.5
EXACT = 1e-13
VISIBLE = 1e-3
FULL_TAIL = {"horizon": None, "cost_bound": None}

CASES = [(name, {}) for name in names()] + [
    ("proximal_kl", FULL_TAIL),
    ("proximal_kl", {**FULL_TAIL, "advantage": "leave_one_out"}),
    ("proximal_kl", {**FULL_TAIL, "advantage": "standardized"}),
    ("proximal_kl", {**FULL_TAIL, "importance": "sequence"}),
    ("proximal_kl", {**FULL_TAIL, "importance": "none"}),
    ("ggpo_clipped", {"clip": 0.5}),
]


@pytest.mark.parametrize(("name", "params"), CASES)
@pytest.mark.parametrize("size", [2, 3])
def test_the_update_vanishes_where_it_is_declared_to(tree, name, params, size):
    if "beta" in parameters(name):
        params = {"beta": BETA, **params}
    objective = load(name, **params)
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    points = {"gibbs": BETA, "gibbs_shifted": BETA * size / (size - 1)}
    for point, beta in points.items():
        update = tree.update(objective, tree.gibbs(reference, beta), mu, reference, size)
        if objective.optimum == point:
            assert update.abs().max() < EXACT
        else:
            assert update.abs().max() > VISIBLE


def test_every_kind_of_optimum_occurs():
    kinds = {load(name, **params).optimum for name, params in CASES}
    assert kinds == {"gibbs", "gibbs_shifted", "none"}


def test_a_wide_clip_restores_the_gibbs_policy(tree):
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    target = tree.gibbs(reference, BETA)
    wide = load("ggpo_clipped", beta=BETA, clip=10.0)
    assert tree.update(wide, target, mu, reference).abs().max() < EXACT
