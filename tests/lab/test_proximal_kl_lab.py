"""Proximal KL in the laboratory: where its update vanishes, and what each shortcut moves."""

import pytest
import torch

from offline_rlvr.lab import Bench, Setting, Tree, fixed
from offline_rlvr.lab.proximal_kl import coefficient_variance
from offline_rlvr.objectives import load

BETA = 0.8
EXACT = 1e-13
FOUND = 1e-6
VISIBLE = 1e-3  # an update that is plainly not zero


def full_tail(**params):
    return load("proximal_kl", beta=BETA, horizon=None, cost_bound=None, **params)


def largest(update: torch.Tensor) -> float:
    return float(update.abs().max())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("behavior", [1, 2, 3])
def test_update_vanishes_at_the_gibbs_policy_for_any_behavior(tree, size, behavior):
    reference, mu = tree.random(0), tree.atoms(tree.random(behavior, 1.5))
    loo, target = full_tail(advantage="leave_one_out"), tree.gibbs(reference, BETA)
    assert largest(tree.update(loo, target, mu, reference, size)) < EXACT
    for other in (reference, tree.random(8), tree.gibbs(reference, 1.5 * BETA)):
        assert largest(tree.update(loo, other, mu, reference, size)) > VISIBLE


def test_also_for_a_mixture_of_stale_policies_each_with_its_own_log_probs(tree):
    reference = tree.random(0)
    mixture = tree.atoms(tree.random(1)).mixed_with(tree.atoms(tree.random(2)), share=0.3)
    loo, target = full_tail(advantage="leave_one_out"), tree.gibbs(reference, BETA)
    assert largest(tree.update(loo, target, mixture, reference)) < EXACT
    assert largest(tree.update(loo, reference, mixture, reference)) > VISIBLE


def test_flow_finds_it(tree):
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    loo = full_tail(advantage="leave_one_out")
    found = Setting(tree, fixed(mu), reference).settle(loo, tree.random(5), rate=3.0)
    assert tree.kl(found, tree.gibbs(reference, BETA)) < FOUND


@pytest.mark.parametrize("size", [2, 3])
def test_the_group_mean_shifts_beta_by_m_over_m_minus_1(tree, size):
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    shifted = tree.gibbs(reference, BETA * size / (size - 1))
    assert largest(tree.update(full_tail(), shifted, mu, reference, size)) < EXACT
    assert largest(tree.update(full_tail(), tree.gibbs(reference, BETA), mu, reference, size)) > (
        VISIBLE
    )


def test_standardizing_makes_beta_depend_on_the_behavior():
    """For binary rewards `E[A | r]` is affine: the fixed point is Gibbs at beta / slope."""
    tree, size = Tree(vocabulary=2, steps=3), 4
    reference, standardized = tree.random(0), full_tail(advantage="standardized")
    betas = []
    for behavior in (tree.random(1, 1.5), tree.gibbs(reference, 0.1)):
        mu = tree.atoms(behavior)
        batch, probability = tree.groups(reference, mu, reference, size)
        r = batch.rewards
        a = (r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True) + 1e-6)
        weights = probability[:, None].expand_as(r)  # every slot of a group is one draw

        def mean_advantage(among, a=a, weights=weights):
            return float((weights * a)[among].sum() / weights[among].sum())

        slope = mean_advantage(r == 1) - mean_advantage(r == 0)
        betas.append(BETA / slope)
        fixed = tree.gibbs(reference, betas[-1])
        assert largest(tree.update(standardized, fixed, mu, reference, size)) < EXACT
        for beta in (BETA, BETA * size / (size - 1)):
            unmoved = tree.gibbs(reference, beta)
            assert largest(tree.update(standardized, unmoved, mu, reference, size)) > VISIBLE
    assert abs(betas[0] - betas[1]) > 0.01


@pytest.mark.parametrize("size", [2, 3])
def test_on_policy_it_is_the_gradient_of_reward_minus_kl(tree, size):
    reference, policy = tree.random(0), tree.random(6).requires_grad_()
    p = tree.probability(policy)
    kl = (p * (p / tree.probability(reference)).log()).sum()
    ((p * tree.rewards).sum() - BETA * kl).backward()
    loo = full_tail(advantage="leave_one_out")
    mu = tree.atoms(policy.detach())
    update = tree.update(loo, policy.detach(), mu, reference, size)
    torch.testing.assert_close(update, policy.grad, rtol=1e-10, atol=1e-14)


def test_off_policy_it_is_not(tree):
    reference, policy, mu = tree.random(0), tree.random(6), tree.atoms(tree.random(1))
    loo = full_tail(advantage="leave_one_out")
    on = tree.update(loo, policy, tree.atoms(policy), reference)
    assert not torch.allclose(tree.update(loo, policy, mu, reference), on, rtol=1e-2)


@pytest.mark.parametrize("importance", ["sequence", "none"])
def test_the_controls_do_not_share_the_fixed_point(tree, importance):
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    control = full_tail(advantage="leave_one_out", importance=importance)
    assert largest(tree.update(control, tree.gibbs(reference, BETA), mu, reference)) > VISIBLE


def test_a_short_horizon_biases_the_fixed_point(tree):
    reference, mu = tree.random(0), tree.atoms(tree.random(1))
    bias = []
    for horizon in (None, 2, 1):
        objective = load(
            "proximal_kl",
            beta=BETA,
            horizon=horizon,
            cost_bound=None,
            advantage="leave_one_out",
        )
        found = Setting(tree, fixed(mu), reference).settle(objective, reference, rate=2.0)
        bias.append(tree.kl(tree.gibbs(reference, BETA), found))
    assert bias[0] < FOUND
    assert 0.01 < bias[1] < bias[2]


def test_a_small_cost_bound_biases_the_fixed_point(tree):
    reference, mu, beta = tree.random(0), tree.atoms(tree.random(1)), 1.0
    bias = []
    for bound in (None, 1.0, 0.7):
        objective = load(
            "proximal_kl", beta=beta, horizon=None, cost_bound=bound, advantage="leave_one_out"
        )
        found = Setting(tree, fixed(mu), reference).settle(objective, reference, rate=2.0)
        bias.append(tree.kl(tree.gibbs(reference, beta), found))
    # 1.0 holds every token log-ratio of the target, 0.7 does not
    assert max(bias[:2]) < FOUND
    assert bias[2] > 1e-3


def test_a_short_horizon_or_a_small_bound_lowers_the_variance():
    bench = Bench(Tree(), beta=1.0)

    def variance(horizon, bound):
        objective = load(
            "proximal_kl",
            beta=1.0,
            horizon=horizon,
            cost_bound=bound,
            advantage="leave_one_out",
        )
        return coefficient_variance(bench, objective)

    by_horizon = [variance(horizon, None) for horizon in (1, 2, None)]
    assert by_horizon[0] < 0.7 * by_horizon[2]
    assert by_horizon[0] < by_horizon[1] < by_horizon[2]
    by_bound = [variance(None, bound) for bound in (0.1, 0.5, None)]
    assert by_bound[0] < 0.5 * by_bound[2]
    assert by_bound[0] < by_bound[1] < by_bound[2]
