"""Weight, credit window and bound by hand."""

import math

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load

COSTS = [0.1, -0.5, 0.3, 0.02]  # policy minus reference, per token of the first response


def run(rewards=(1.0, 0.0), **params):
    """One group of two responses: four tokens with `COSTS`, and one token at the reference."""
    cost = torch.tensor([[COSTS, [0.0] * 4]], dtype=torch.float64)
    weight = torch.tensor([[[2.0, 0.5, 1.0, 4.0], [1.5, 1.0, 1.0, 1.0]]], dtype=torch.float64)
    policy = torch.full_like(cost, -3.0).requires_grad_()
    mask = torch.tensor([[[True] * 4, [True, False, False, False]]])
    batch = TokenBatch(
        policy,
        policy.detach() - weight.log(),
        torch.tensor([rewards], dtype=torch.float64),
        mask,
        ref_logprobs=policy.detach() - cost,
    )
    out = load("proximal_kl", **params)(batch, Totals(1, 5))
    out.loss.backward()
    return out, (-5 * policy.grad[0]).tolist()


def test_window_includes_the_current_token_and_ends_with_the_response():
    _, c = run(beta=1.0, horizon=2, cost_bound=1.0)
    sums = [0.1 - 0.5, -0.5 + 0.3, 0.3 + 0.02, 0.02]
    expected = [w * (0.5 - s) for w, s in zip([2.0, 0.5, 1.0, 4.0], sums, strict=True)]
    assert c[0] == pytest.approx(expected, abs=1e-14)
    assert c[1] == pytest.approx([1.5 * -0.5, 0, 0, 0], abs=1e-14)


@pytest.mark.parametrize("advantage", ["centered", "standardized", "leave_one_out"])
def test_a_shift_is_added_to_every_advantage(advantage):
    (_, plain), (_, shifted) = (
        run(beta=1.0, advantage=advantage, advantage_shift=by) for by in (0.0, 0.7)
    )
    weights = [2.0, 0.5, 1.0, 4.0]
    expected = [c + 0.7 * w for c, w in zip(plain[0], weights, strict=True)]
    assert shifted[0] == pytest.approx(expected, abs=1e-14)


def test_full_tail():
    _, c = run(beta=2.0, horizon=None, cost_bound=None, importance="none")
    tails = [sum(COSTS[t:]) for t in range(4)]
    assert c[0] == pytest.approx([0.5 - 2 * tail for tail in tails], abs=1e-14)


def test_cost_bound_saturates_the_cost_and_keeps_the_score():
    out, c = run(beta=1.0, horizon=1, cost_bound=0.2, importance="none")
    clipped = [0.1, -0.2, 0.2, 0.02]
    assert c[0] == pytest.approx([0.5 - x for x in clipped], abs=1e-14)
    assert out.metrics["objective/cost_saturated"].mean == pytest.approx(2 / 5)


def test_sequence_weight_is_the_geometric_mean_of_token_ratios():
    _, c = run(beta=0.0, importance="sequence")
    mean = (2.0 * 0.5 * 1.0 * 4.0) ** 0.25
    assert c[0] == pytest.approx([mean * 0.5] * 4, abs=1e-14)
    assert c[1][0] == pytest.approx(1.5 * -0.5, abs=1e-14)


@pytest.mark.parametrize(
    ("advantage", "values"),
    [
        ("centered", (0.5, -0.5)),
        ("leave_one_out", (1.0, -1.0)),
        ("standardized", (1 / math.sqrt(2), -1 / math.sqrt(2))),
    ],
)
def test_advantages(advantage, values):
    _, c = run(beta=0.0, importance="none", advantage=advantage)
    assert [c[0][0], c[1][0]] == pytest.approx(values, rel=2e-6)


def test_reward_range_scales_the_advantage_against_the_cost():
    _, unit = run(beta=1.0, horizon=1, cost_bound=1.0, importance="none")
    _, signed = run(
        beta=2.0, horizon=1, cost_bound=1.0, importance="none", reward_range=(-1.0, 1.0)
    )
    assert signed[0] == pytest.approx([2 * x for x in unit[0]], abs=1e-14)


def test_equal_rewards_leave_the_cost():
    _, c = run((1.0, 1.0), beta=1.0, horizon=1, cost_bound=1.0, importance="none")
    assert c[0] == pytest.approx([-x for x in COSTS], abs=1e-14)
    assert c[1] == pytest.approx([0.0] * 4, abs=1e-14)


def test_our_defaults():
    objective = load("proximal_kl")
    assert (objective.beta, objective.horizon, objective.cost_bound) == (0.3, 4, 0.2)
    assert (objective.importance, objective.advantage) == ("token", "centered")
    assert objective.reward_range == (0.0, 1.0)
    assert "OURS" in type(objective).__doc__


def variance_of(c):
    """Over the five tokens of the group."""
    values = [*c[0], c[1][0]]
    mean = sum(values) / 5
    return sum((value - mean) ** 2 for value in values) / 5


@pytest.mark.parametrize("horizon", [1, 2, None])
def test_the_variance_of_the_coefficients_is_measured(horizon):
    out, c = run(beta=2.0, horizon=horizon, cost_bound=None)
    found = out.metrics["objective/coefficient_variance"].mean
    assert found == pytest.approx(variance_of(c), rel=1e-12)
    assert "objective/horizon" not in out.metrics


def test_an_adaptive_horizon_also_measures_twice_the_horizon():
    out, c = run(beta=2.0, horizon="adaptive", adaptive_horizon=2, cost_bound=None)
    same, fixed = run(beta=2.0, horizon=2, cost_bound=None)
    _, twice = run(beta=2.0, horizon=4, cost_bound=None)
    assert (out.loss.item(), c) == (same.loss.item(), fixed)
    found = {key: value.mean for key, value in out.metrics.items()}
    assert found["objective/horizon"] == 2
    assert found["objective/coefficient_variance"] == pytest.approx(variance_of(fixed))
    assert found["objective/coefficient_variance_2h"] == pytest.approx(variance_of(twice))


@pytest.mark.parametrize(
    ("horizon", "now", "twice", "following"),
    [
        (4, 0.9, 1.0, 8),  # twice as far keeps to the bound
        (4, 0.9, 1.1, None),
        (4, 1.1, 0.9, 8),
        (4, 1.1, 1.2, 2),
        (4, 1.1, 1.1, 2),
        (4, 0.9, 0.9, None),  # twice as far is the same: the responses end before
        (1, 1.1, 1.2, None),  # no shorter one
        (1, 1.1, 0.9, 2),
        (4, None, None, None),  # not measured, or not finite
    ],
)
def test_the_horizon_follows_the_variance(horizon, now, twice, following):
    objective = load("proximal_kl", horizon="adaptive", adaptive_horizon=horizon, variance_bound=1)
    keys = ("objective/coefficient_variance", "objective/coefficient_variance_2h")
    metrics = {k: v for k, v in zip(keys, (now, twice), strict=True) if v is not None}
    changes = {} if following is None else {"adaptive_horizon": following}
    assert objective.adapted(metrics) == changes
    assert load("proximal_kl", horizon=horizon).adapted(metrics) == {}
