"""The statements of the GGPO paper."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from offline_rlvr.batch import TokenBatch
from offline_rlvr.lab.bench import OTHERS, Bench
from offline_rlvr.lab.statement import Statement
from offline_rlvr.lab.tree import totals_of
from offline_rlvr.objectives import load
from offline_rlvr.objectives.interface import Objective

#: Differences of float64 sums.
EXACT = 1e-12
#: Total variation to where a flow is heading when its steps have become this small.
STILL, FOUND = 1e-5, 1e-3
POLICIES = 20
#: The limit of small temperatures, for rewards 0 and 1.
SMALL_BETA = 1e-3


def total_loss(
    bench: Bench, beta: float, logits: Tensor, behavior: str, reference: Tensor | None = None
) -> float:
    """GGPO's loss summed over all groups: 0 iff its expectation is, at full support."""
    setting = bench.setting(behavior, reference)
    drawn = setting.behavior(logits)
    batch, _ = bench.tree.groups(logits, drawn, setting.reference, bench.size)
    return float(load("ggpo", beta=beta)(batch, totals_of(batch)).loss)


def zero_loss(bench: Bench) -> Iterator[Statement]:
    """Zero population loss identifies the Gibbs policy, whatever drew the responses."""
    for behavior in ("stale", "mixed"):
        loss = total_loss(bench, bench.beta, bench.target, behavior)
        text = f"loss at the Gibbs policy, {behavior} behavior"
        yield Statement("ggpo", text, "=", 0.0, loss, EXACT)
    others = [bench.policy(OTHERS + n) for n in range(POLICIES)]
    least = min(total_loss(bench, bench.beta, other, "stale") for other in others)
    yield Statement("ggpo", f"smallest loss at {POLICIES} other policies", ">", 0.0, least, 1e-3)


def flows(bench: Bench) -> Iterator[Statement]:
    """Its flow ends at the Gibbs policy from anywhere."""
    yield flow_statement(bench, "ggpo", load("ggpo", beta=bench.beta))


def flow_statement(bench: Bench, about: str, objective: Objective) -> Statement:
    """Three starts, three behaviors: the largest distance at which a flow comes to rest."""
    starts = [bench.reference, bench.policy(OTHERS), bench.policy(OTHERS + 1)]
    ends = [
        bench.setting(behavior).settle(objective, start, rate=2.0, steps=5000, tolerance=STILL)
        for behavior in bench.behaviors
        for start in starts
    ]
    worst = max(bench.tree.total_variation(end, bench.target) for end in ends)
    text = "total variation to the Gibbs policy where the flow rests, 3 starts x 3 behaviors"
    return Statement(about, text, "=", 0.0, worst, FOUND)


def refresh(bench: Bench) -> Iterator[Statement]:
    """T exact rounds at beta are one at beta / T; each adds 1 / beta to the success log-odds."""
    tree, rounds, policy = bench.tree, 3, bench.reference
    for _ in range(rounds):
        policy = tree.gibbs(policy, bench.beta)
    once = total_loss(bench, bench.beta / rounds, policy, "stale")
    text = f"loss at beta / {rounds} after {rounds} exact rounds at beta"
    yield Statement("ggpo", text, "=", 0.0, once, EXACT)
    yield refresh_statement(bench, "ggpo", load("ggpo", beta=2 * bench.beta))


def refresh_statement(bench: Bench, about: str, objective: Objective) -> Statement:
    """Two rounds of flow at 2 beta with a refresh between: success log-odds gained per round."""
    policy = bench.reference
    for _ in range(2):
        setting = bench.setting("stale", reference=policy)
        policy = setting.settle(objective, policy, rate=2.0, steps=5000, tolerance=STILL)
    gained = (bench.tree.log_odds(policy) - bench.tree.log_odds(bench.reference)) / 2
    text = "log-odds gained per refreshed round of flow at 2 beta, stale behavior: 1 / (2 beta)"
    return Statement(about, text, "=", 1 / (2 * bench.beta), gained, 1e-3)


def best_of_k(bench: Bench) -> Iterator[Statement]:
    """Refreshed rounds overtake the best of K responses of the initial policy."""
    tree, start, draws = bench.tree, bench.reference, 8
    chance = 1 - (1 - tree.success(start)) ** draws
    ahead = math.log(chance / (1 - chance)) - tree.log_odds(start)
    policy, rounds = start, 0
    while tree.success(policy) < chance:
        policy, rounds = tree.gibbs(policy, bench.beta), rounds + 1
    text = f"exact rounds until one response succeeds as often as the best of {draws}"
    yield Statement("ggpo", text, "=", math.ceil(bench.beta * ahead), rounds)
    slack = [
        tree.success(tree.gibbs(start, bench.beta / t))
        - (1 - (1 - tree.success(start)) ** k)
        + bench.beta * math.log(k) / t
        for t in range(1, 9)
        for k in (2, 4, 8, 16, 32, 64)
    ]
    text = "J(T rounds) - J(best of K) + beta log(K) / T, smallest over T <= 8, K <= 64"
    yield Statement("ggpo", text, ">", 0.0, min(slack))


def coefficients(delta: Tensor, rewards: Tensor, beta: float, name: str = "ggpo") -> Tensor:
    """[G, m] coefficients of one-token responses whose log-ratios to the reference are `delta`."""
    reference = torch.full_like(delta, -30.0)[..., None]
    mask = torch.ones_like(reference, dtype=torch.bool)
    policy = reference + delta[..., None]
    batch = TokenBatch(policy, reference, rewards, mask, ref_logprobs=reference)
    return load(name, beta=beta)(batch, totals_of(batch)).coefficients


def saturation(bench: Bench) -> Iterator[Statement]:
    """When a right response is pushed down, and how weight is shared inside a reward class."""
    groups, m = 2000, 8
    generator = torch.Generator().manual_seed(bench.seed)
    delta = 2 * torch.randn(groups, m, generator=generator, dtype=torch.float64)
    right_count = torch.arange(groups).double() % (m - 1) + 1
    right = torch.arange(m) < right_count[:, None]
    c = coefficients(delta, right.double(), SMALL_BETA)
    lone = float(c[right_count == 1, 0].min())
    text = "smallest coefficient of a lone right response: sqrt(m-1)"
    yield Statement("ggpo", text, "=", (m - 1) ** 0.5, lone, EXACT)
    others = (-delta).exp() * right
    mean_other = -((others.sum(-1, keepdim=True) - others) / (right_count[:, None] - 1)).log()
    pushed_down = delta - mean_other > math.log(m - 1) - (right_count[:, None] - 1).log()
    several = right & (right_count[:, None] > 1)
    differing = float(((c < 0) != pushed_down)[several].sum())
    text = "signs that differ from log((m-1) / (k-1)) - (Delta_i - Delta of other right ones)"
    yield Statement("ggpo", text, "=", 0.0, differing)
    floor = float((c[~right] + (m - 1) ** -0.5).abs().max())
    text = "wrong responses: largest distance of the coefficient to -1 / sqrt(m-1)"
    yield Statement("ggpo", text, "=", 0.0, floor, EXACT)
    c = coefficients(delta, right.double(), 1.0)
    log_q = ((c * (m - 1) ** 0.5 + 1) / m).log()
    pair = right_count > 1
    ratio = log_q[pair, 0] - log_q[pair, 1] + delta[pair, 0] - delta[pair, 1]
    text = "log weight ratio of two right responses at beta 1, plus Delta_i - Delta_j, largest"
    yield Statement("ggpo", text, "=", 0.0, float(ratio.abs().max()), 1e-9)
    a = coefficients(torch.zeros_like(delta), right.double(), bench.beta, "agro")
    expected = right_count * (m - right_count) / (m - 1)
    error = float(((a * right).sum(-1) - expected).abs().max())
    text = "equal log-ratios: right advantages sum to k (m-k) / (m-1), largest error"
    yield Statement("agro", text, "=", 0.0, error, EXACT)


CHECKS = (zero_loss, flows, refresh, best_of_k, saturation)
