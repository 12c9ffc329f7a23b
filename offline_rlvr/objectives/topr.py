"""TOPR: tapered off-policy REINFORCE."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics import masked, ratios
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, score_output
from offline_rlvr.objectives.parameters import Parameters, number, pair


@dataclass(frozen=True)
class Topr(Parameters):
    """Positive examples at full weight, negative ones tapered by the sequence ratio.

        R_i = low + (high - low) r_i - baseline
        w_i = 1 where R_i >= 0, else clip(exp(s_i - s_mu_i), 0, 1)
        L   = -(1/N) sum_i sg(w_i R_i) s_i

    A wrong response that the policy no longer produces stops pushing. The one objective here that
    is not relative to its group: all-equal rewards do give a gradient.

    Args:
        reward_range: What a reward of 0 and of 1 becomes, [-1, 1] as in the paper.
        baseline: Taken off the reward, in its units; below 0 it favors positive examples.

    Reference:
        Le Roux et al. (2025), *Tapered Off-Policy REINFORCE*, arXiv 2503.14286, section 3: the
        gradient with ratios truncated to [0, 1] on negative and absent on positive examples.

    Differs from the paper:
        token mean over the update instead of a mean over responses.

    Reduces to:
        REINFORCE with rewards R where the policy is the behavior.
    """

    reward_range: tuple[float, float] = pair((-1.0, 1.0))
    baseline: float = number(0.0)

    anchors = frozenset()
    uses_behavior = True
    optimum: ClassVar[Optimum] = "none"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: Groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        low, high = self.reward_range
        r = low + (high - low) * batch.rewards.double() - self.baseline
        log_ratio = (logprobs(batch, "policy").detach() - logprobs(batch, "behavior")).sum(-1)
        weight = torch.where(r >= 0, 1.0, ratios.ratio(log_ratio, cap=1.0))
        metrics = {"objective/negative_weight": masked.sum_count(weight, r < 0)}
        return score_output(batch, totals, weight * r, metrics)
