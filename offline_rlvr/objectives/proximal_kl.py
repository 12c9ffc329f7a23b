"""Proximal KL: token-wise importance weights with bounded future KL credit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics import groups, masked, ratios
from offline_rlvr.numerics.masked import SumCount
from offline_rlvr.numerics.windows import future_sum
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, score_output
from offline_rlvr.objectives.parameters import Parameters, choice, integer, number, pair

#: Keeps a standardized advantage finite when rewards of a group nearly agree.
STD_EPSILON = 1e-6


@dataclass(frozen=True)
class ProximalKl(Parameters):
    """Advantage minus the KL cost of the tokens to come, weighted token by token.

        w_t      = exp(p_t - mu_t)
        credit_t = A - beta sum_{k=t}^{min(t+H-1, end)} clip(p_k - ref_k, -cost_bound, cost_bound)
        L        = -(1/N) sum_t sg(w_t credit_t) p_t

    No PPO clip; everything that multiplies p is detached, so the score gradient stays alive where
    the cost saturates. The cost is not divided by H. All-equal rewards give A = 0 and leave the
    cost.

    Args:
        beta: Strength of the cost per token and nat, in units of reward, >= 0.
        horizon: Tokens of future cost, the current one included, >= 1; null: to the end of the
            response; `adaptive`: see above.
        cost_bound: Bound of one token's log-ratio to the reference, nats, > 0; null: none.
        importance: `token` as above; `sequence`: the geometric mean of a response's token ratios;
            `none`: 1.
        advantage: `centered`: r - mean(r); `standardized`: also divided by the sample standard
            deviation;
            `leave_one_out`: r minus the mean of the others.
        reward_range: What a reward of 0 and of 1 becomes; the paper's {-1, +1} is [-1, 1].
        variance_bound: Of the adaptive horizon, > 0, in units of reward squared.
        adaptive_horizon: The adaptive horizon of the first update, >= 1.
        advantage_shift: Added to every advantage, as appendix C.3 disturbs the baseline; 0 is the
            method.

    An adaptive horizon is the longest, up to a factor of two, that keeps the variance of the
    coefficients c = w credit under a bound: after an update in which twice the horizon would have
    changed the coefficients and kept to `variance_bound` it is doubled, else it is halved where the
    variance exceeds the bound. The variance is taken over the tokens of a group, and averaged over
    the groups of the update. Weights and advantages are in it, too: with a bound below their own
    variance the horizon stays at 1.

    The defaults of beta, horizon, cost_bound and variance_bound are OURS, chosen for the built-in
    small task: the public summary of the paper gives none.

    Reference:
        *Enabling Token-wise Importance Sampling in Off-Policy RLVR with Proximal KL
        Regularization*, arXiv 2610.18738, section 4; controls in appendix A.

    Differs from the paper:
        rewards are the pool's 0/1 unless `reward_range` says otherwise, so beta weighs twice as
        much.
        `leave_one_out` is an addition: its fixed point is the Gibbs policy at beta itself, that of
        `centered` lies at beta m / (m - 1) because the group mean contains the response's own
        reward. `horizon: adaptive` answers what the paper leaves open (section 7). a token ratio
        saturates at e^30 (counted in `objective/ratio_saturated`).

    Reduces to:
        pg at beta = 0.
    """

    beta: float = number(0.3, least=0.0)
    horizon: int | Literal["adaptive"] | None = integer(4, least=1, optional=True, word="adaptive")
    cost_bound: float | None = number(0.2, above=0.0, optional=True)
    importance: Literal["token", "sequence", "none"] = choice("token", "sequence", "none")
    advantage: Literal["centered", "standardized", "leave_one_out"] = choice(
        "centered", "standardized", "leave_one_out"
    )
    reward_range: tuple[float, float] = pair((0.0, 1.0))
    variance_bound: float = number(0.3, above=0.0)
    adaptive_horizon: int = integer(1, least=1)
    advantage_shift: float = number(0.0)

    @property
    def anchors(self) -> frozenset[str]:
        """The reference, unless there is no cost."""
        return frozenset({"reference"} if self.beta > 0 else ())

    @property
    def uses_behavior(self) -> bool:
        """Unless the importance weight is switched off."""
        return self.importance != "none"

    @property
    def optimum(self) -> Optimum:
        """Gibbs (shifted by the group mean) with the full tail, no bound and token weights; else
        none."""
        full_tail = self.horizon is None and self.cost_bound is None and self.beta > 0
        if not full_tail or self.importance != "token" or self.advantage == "standardized":
            return "none"
        return "gibbs" if self.advantage == "leave_one_out" else "gibbs_shifted"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: No reference log-probs, groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        metrics: dict[str, SumCount] = {}
        weight, advantage = self._weight(batch, metrics), self._advantage(batch)[..., None]
        cost = self._cost(batch, metrics)

        def coefficients(horizon: int | None) -> Float[Tensor, "G K T"]:
            return weight * (advantage - self.beta * future_sum(cost, horizon))

        def variance(c: Float[Tensor, "G K T"]) -> SumCount:
            return masked.total(groups.token_variance(c, batch.response_mask))

        if self.horizon != "adaptive":
            c = coefficients(self.horizon)
        else:
            c = coefficients(self.adaptive_horizon)
            twice = coefficients(2 * self.adaptive_horizon)
            metrics["objective/coefficient_variance_2h"] = variance(twice)
            metrics["objective/horizon"] = masked.total(
                torch.full((len(c),), self.adaptive_horizon, dtype=c.dtype, device=c.device)
            )
        metrics["objective/coefficient_variance"] = variance(c)
        return score_output(batch, totals, c, metrics)

    def adapted(self, metrics: Mapping[str, int | float]) -> dict[str, Any]:
        """The adaptive horizon of the next update, where it is another one."""
        keys = ("objective/coefficient_variance", "objective/coefficient_variance_2h")
        now, twice = map(metrics.get, keys)
        if self.horizon != "adaptive" or now is None or twice is None:
            return {}
        if now != twice and twice <= self.variance_bound:
            return {"adaptive_horizon": 2 * self.adaptive_horizon}
        if now > self.variance_bound and self.adaptive_horizon > 1:
            return {"adaptive_horizon": self.adaptive_horizon // 2}
        return {}

    def _weight(self, batch: TokenBatch, metrics: dict[str, SumCount]) -> Float[Tensor, "G K #T"]:
        p = logprobs(batch, "policy").detach()
        if self.importance == "none":
            return p.new_ones(*p.shape[:2], 1)
        log_ratio = p - logprobs(batch, "behavior")
        if self.importance == "sequence":
            log_ratio = masked.token_mean(log_ratio, batch.response_mask)[..., None]
        beyond = ratios.saturated(log_ratio).expand(p.shape)
        metrics["objective/ratio_saturated"] = masked.share(beyond, batch.response_mask)
        return ratios.ratio(log_ratio)

    def _cost(self, batch: TokenBatch, metrics: dict[str, SumCount]) -> Float[Tensor, "G K T"]:
        """Of one token, bounded, nats."""
        p = logprobs(batch, "policy").detach()
        if self.beta == 0:
            return p * 0
        cost = p - logprobs(batch, "reference")
        if self.cost_bound is not None:
            beyond = cost.abs() > self.cost_bound
            metrics["objective/cost_saturated"] = masked.share(beyond, batch.response_mask)
            cost = cost.clamp(-self.cost_bound, self.cost_bound)
        return cost

    def _advantage(self, batch: TokenBatch) -> Float[Tensor, "G K"]:
        low, high = self.reward_range
        rewards = low + (high - low) * batch.rewards.double()
        if self.advantage == "standardized":
            advantage = groups.standardized(rewards, STD_EPSILON)
        elif self.advantage == "leave_one_out":
            advantage = groups.leave_one_out(rewards)
        else:
            advantage = groups.centered(rewards)
        return advantage + self.advantage_shift
