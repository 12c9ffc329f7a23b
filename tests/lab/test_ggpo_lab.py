"""GGPO in the laboratory: its loss vanishes at the Gibbs policy, whatever drew the responses."""

import itertools
import math

import pytest
import torch

from offline_rlvr.lab import Setting, Tree, fixed, totals_of
from offline_rlvr.objectives import load

BETA = 0.5
EXACT = 1e-12
FOUND = 1e-6  # KL to the target after a flow that stops at updates of 1e-5


def population_loss(tree, logits, behavior, reference, beta, size):
    """Sum of the group gaps over all groups: zero iff the expected loss is, at full support."""
    batch, probability = tree.groups(logits, behavior, reference, size)
    assert probability.min() > 0
    return load("ggpo", beta=beta)(batch, totals_of(batch)).loss


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("behavior", [1, 2])
def test_loss_is_zero_exactly_at_the_gibbs_policy(tree, size, behavior):
    reference, mu = tree.random(0), tree.atoms(tree.random(behavior, 2.0))
    target = tree.gibbs(reference, BETA)
    assert abs(population_loss(tree, target, mu, reference, BETA, size).item()) < EXACT
    for other in (reference, tree.random(7), tree.gibbs(reference, 2 * BETA)):
        assert population_loss(tree, other, mu, reference, BETA, size).item() > 1e-3


@pytest.mark.parametrize(("start", "behavior"), [(5, 1), (6, 2)])
def test_flow_on_the_token_tree_finds_it(tree, start, behavior):
    reference, mu = tree.random(0), tree.atoms(tree.random(behavior))
    flow = Setting(tree, fixed(mu), reference)
    found = flow.settle(load("ggpo", beta=BETA), tree.random(start), rate=3.0)
    assert tree.kl(found, tree.gibbs(reference, BETA)) < FOUND


@pytest.mark.parametrize("seed", [0, 1])
def test_one_softmax_over_responses_is_convex_and_found_from_far_away(seed):
    flat = Tree(vocabulary=5, steps=1)
    flat.rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0], dtype=torch.float64)
    reference, mu = flat.random(10), flat.atoms(flat.random(20 + seed, 1.0))

    def loss(logits):
        return population_loss(flat, logits, mu, reference, BETA, size=2)

    far = flat.random(30 + seed, 4.0)
    for point in (far, flat.random(40 + seed)):
        hessian = torch.autograd.functional.hessian(loss, point).reshape(5, 5)
        assert torch.linalg.eigvalsh(hessian).min() > -EXACT
    found = Setting(flat, fixed(mu), reference).settle(load("ggpo", beta=BETA), far)
    assert flat.kl(found, flat.gibbs(reference, BETA)) < FOUND


def test_refresh_rounds_divide_beta_and_add_to_the_log_odds(tree):
    rounds, policy, mu = 3, tree.random(0), tree.atoms(tree.random(1))
    start, log_odds = policy, []
    for _ in range(rounds):
        refreshed = tree.gibbs(policy, BETA)
        assert abs(population_loss(tree, refreshed, mu, policy, BETA, 2).item()) < EXACT
        policy = refreshed
        log_odds.append(math.log(tree.success(policy) / (1 - tree.success(policy))))
    # one round at beta / T ends where T rounds at beta do
    once = population_loss(tree, policy, mu, start, BETA / rounds, 2).item()
    assert abs(once) < EXACT
    assert population_loss(tree, policy, mu, start, BETA, 2).item() > 1e-2
    steps = [b - a for a, b in itertools.pairwise(log_odds)]
    assert steps == pytest.approx([1 / BETA] * (rounds - 1), rel=1e-9)


def test_two_rounds_of_flow_with_a_refresh_between(tree):
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    objective = load("ggpo", beta=2 * BETA)
    policy = reference
    for _ in range(2):
        policy = Setting(tree, fixed(mu), policy).settle(objective, policy, rate=3.0)
    assert tree.kl(policy, tree.gibbs(reference, BETA)) < FOUND
