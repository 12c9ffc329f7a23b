"""The statements of the Proximal KL paper, and what its two approximations cost and bring."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from offline_rlvr.batch import TokenBatch
from offline_rlvr.lab.bench import OTHERS, Bench
from offline_rlvr.lab.comparison import FULL_TAIL
from offline_rlvr.lab.ggpo import EXACT, POLICIES, STILL, flow_statement, refresh_statement
from offline_rlvr.lab.statement import Statement
from offline_rlvr.lab.tree import totals_of
from offline_rlvr.objectives import load
from offline_rlvr.objectives.interface import Objective

ABOUT = "proximal_kl, full tail"
#: An update that is plainly not zero.
VISIBLE = 1e-3


def full_tail(beta: float, **changed: Any) -> Objective:
    """Proximal KL as its theorem has it, unless changed."""
    return load("proximal_kl", **{"beta": beta, **FULL_TAIL, **changed})


def largest(bench: Bench, objective: Objective, logits: Tensor, behavior: str) -> float:
    """Largest entry of the expected update at a policy."""
    return float(bench.setting(behavior).update(objective, logits).abs().max())


def fixed_point(bench: Bench) -> Iterator[Statement]:
    """The token-wise update vanishes at the Gibbs policy and nowhere else."""
    objective = full_tail(bench.beta)
    for behavior in ("stale", "mixed"):
        update = largest(bench, objective, bench.target, behavior)
        text = f"largest update at the Gibbs policy, {behavior} behavior"
        yield Statement(ABOUT, text, "=", 0.0, update, EXACT)
    others = [bench.policy(OTHERS + n) for n in range(POLICIES)]
    least = min(largest(bench, objective, other, "mixed") for other in others)
    text = f"smallest such update at {POLICIES} other policies"
    yield Statement(ABOUT, text, ">", 0.0, least, VISIBLE)
    yield flow_statement(bench, ABOUT, objective)
    yield refresh_statement(bench, ABOUT, full_tail(2 * bench.beta))


def on_policy_gradient(bench: Bench) -> Iterator[Statement]:
    """On policy the update is the gradient of the regularized reward."""
    policy = bench.policy(OTHERS).requires_grad_()
    p = bench.tree.probability(policy)
    kl = (p * (p / bench.tree.probability(bench.reference)).log()).sum()
    value = (p * bench.tree.rewards).sum() - bench.beta * kl
    (gradient,) = torch.autograd.grad(value, policy)
    update = bench.setting("on policy").update(full_tail(bench.beta), policy.detach())
    error = float((update - gradient).abs().max() / gradient.abs().max())
    text = "on policy: relative difference to the gradient of E[r] - beta KL(policy, reference)"
    yield Statement(ABOUT, text, "=", 0.0, error, EXACT)


def group_mean(bench: Bench) -> Iterator[Statement]:
    """The group mean holds the response's own reward and so scales beta."""
    objective = full_tail(bench.beta, advantage="centered")
    setting = bench.setting("stale")
    end = setting.settle(objective, bench.reference, rate=2.0, steps=5000, tolerance=STILL)
    found = 1 / (bench.tree.log_odds(end) - bench.tree.log_odds(bench.reference))
    expected = bench.beta * bench.size / (bench.size - 1)
    text = "group-mean baseline: beta of the fixed point, beta m / (m-1)"
    yield Statement(ABOUT, text, "=", expected, found, 1e-3)


def no_fixed_point(bench: Bench) -> Iterator[Statement]:
    """What does not share the fixed point: other weights, PPO clipping, PG, CISPO."""
    stay = {
        "proximal_kl, sequence weight": full_tail(bench.beta, importance="sequence"),
        "proximal_kl, no weight": full_tail(bench.beta, importance="none"),
        "grpo": load("grpo", kl_coef=bench.beta),
        "grpo_tis": load("grpo_tis", kl_coef=bench.beta),
        "pg": load("pg"),
        "cispo": load("cispo"),
    }
    for about, objective in stay.items():
        update = min(largest(bench, objective, bench.target, b) for b in ("stale", "mixed"))
        text = "largest update at the Gibbs policy, stale or mixed behavior"
        yield Statement(about, text, ">", 0.0, update, VISIBLE)


def clip_gate(bench: Bench) -> Iterator[Statement]:
    """Above the upper bound PPO clipping keeps the negative half of a symmetric advantage."""
    ratio = torch.tensor(2.0, dtype=torch.float64)
    policy = torch.full((1, 2, 1), -1.0, dtype=torch.float64)
    batch = TokenBatch(
        policy,
        policy - ratio.log(),
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        torch.ones_like(policy, dtype=torch.bool),
    )
    sigma = 0.5**0.5  # of two standardized rewards
    clipped = load("grpo", kl_coef=0.0)(batch, totals_of(batch)).coefficients
    text = "mean coefficient of +-sigma advantages at ratio 2: -ratio sigma / 2"
    yield Statement("grpo", text, "=", float(-ratio * sigma / 2), float(clipped.mean()), 1e-5)
    free = load("proximal_kl", beta=0.0, advantage="standardized")(batch, totals_of(batch))
    text = "the same without a clip"
    yield Statement("proximal_kl", text, "=", 0.0, float(free.coefficients.mean()), EXACT)


def shifted_baseline(bench: Bench) -> Iterator[Statement]:
    """A constant added to every advantage: token weights cancel it, a PPO clip or no weight does
    not.
    """
    policies = [bench.policy(OTHERS + n) for n in range(POLICIES)]

    def change(name: str, **params: Any) -> float:
        plain, shifted = (load(name, advantage_shift=by, **params) for by in (0.0, 1.0))
        settings = [bench.setting(behavior) for behavior in ("stale", "mixed")]
        return max(
            float((s.update(shifted, p) - s.update(plain, p)).abs().max())
            for s in settings
            for p in policies
        )

    text = f"largest change of the update when 1 is added to every advantage, {POLICIES} policies"
    for about, params in {
        ABOUT: FULL_TAIL,
        "proximal_kl, horizon 1, bound 0.2": {"horizon": 1, "cost_bound": 0.2},
    }.items():
        found = change("proximal_kl", **{"beta": bench.beta, **params})
        yield Statement(about, text, "=", 0.0, found, EXACT)
    unweighted = change("proximal_kl", beta=bench.beta, importance="none")
    yield Statement("proximal_kl, no weight", text, ">", 0.0, unweighted, VISIBLE)
    clipped = change("grpo", kl_coef=bench.beta)
    yield Statement("grpo", text, ">", 0.0, clipped, VISIBLE)


@dataclass(frozen=True)
class Tradeoff:
    """What a shorter horizon or a smaller cost bound does.

    Attributes:
        horizon: Tokens of future cost; None: all.
        cost_bound: Nats; None: none.
        bias: Total variation between the end of the flow and the Gibbs policy.
        variance: Of a token's coefficient over responses and groups, mean over drifted policies.
    """

    horizon: int | None
    cost_bound: float | None
    bias: float
    variance: float


def tradeoffs(bench: Bench, steps: int) -> list[Tradeoff]:
    """Bias and variance for each horizon without a bound, and each bound with the full tail."""
    rows: list[tuple[int | None, float | None]] = [(None, None), (2, None), (1, None)]
    rows += [(None, bound) for bound in (1.0, 0.5, 0.2)]
    found = []
    for horizon, bound in rows:
        objective = full_tail(bench.beta, horizon=horizon, cost_bound=bound)
        flow = bench.setting("stale").flow(objective, bench.reference)
        end = next(islice(flow, steps, None))
        bias = bench.tree.total_variation(end, bench.target)
        found.append(Tradeoff(horizon, bound, bias, coefficient_variance(bench, objective)))
    return found


def coefficient_variance(bench: Bench, objective: Objective, drift: float = 0.7) -> float:
    """Variance of the token coefficients, mean over 10 policies that drifted from the reference.

    Args:
        bench: The arrangement; the stale behavior draws.
        objective: With coefficients per token.
        drift: Standard deviation of the logits' change.
    """
    found = []
    for number in range(OTHERS, OTHERS + 10):
        policy = bench.reference + drift * bench.policy(number)
        behavior = bench.setting("stale").behavior(policy)
        batch, chance = bench.tree.groups(policy, behavior, bench.reference, bench.size)
        c = objective(batch, totals_of(batch)).coefficients
        weights = chance[:, None, None] * batch.response_mask
        weights = weights / weights.sum()
        found.append(float((weights * (c - (weights * c).sum()).square()).sum()))
    return sum(found) / len(found)


CHECKS = (
    fixed_point,
    on_policy_gradient,
    group_mean,
    no_fixed_point,
    clip_gate,
    shifted_baseline,
)
