"""GRPO with the stored behavior log-probs as the ratio's denominator."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics import groups, masked, ratios
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, output
from offline_rlvr.objectives.parameters import Parameters, number

#: The paper's stabilizer of the standard deviation.
STD_EPSILON = 1e-6


@dataclass(frozen=True)
class Grpo(Parameters):
    """Clipped PPO surrogate on standardized group rewards, plus a K3 penalty to the reference.

        A   = (r - mean) / (std + 1e-6) + advantage_shift     std with m - 1, detached
        rho = exp(p - mu)
        l_t = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), if A < 0: <= -A dual_clip
        L   = (1/N) sum_t l_t + kl_coef (exp(ref_t - p_t) - (ref_t - p_t) - 1)

    No entropy bonus. All-equal rewards give A = 0 exactly and leave the penalty.

    Args:
        clip_low: Lower clip of the ratio at `1 - clip_low`, in [0, 1].
        clip_high: Upper clip at `1 + clip_high`, >= 0.
        dual_clip: Bound of the ratio for negative advantages, > 1 (Ye et al. 2020).
        kl_coef: Weight of the penalty, >= 0; at 0 no reference is needed.
        advantage_shift: Added to every advantage, as arXiv 2610.18738 disturbs the baseline
            (appendix C.3); 0 is the method.

    Reference:
        Shao et al. (2024) in the configuration of *Gibbs-Gap Policy Optimization*, appendix C.
        There the reference is the fixed initial policy: `reference.refresh_every: null`.

    Differs from the paper:
        the penalty goes on along its tangent beyond 30 nats, which keeps gradients finite.

    Reduces to:
        proximal_kl(beta=0, advantage=standardized) at kl_coef = 0 where the policy is the behavior
        (gradient).
    """

    clip_low: float = number(0.2, least=0.0, most=1.0)
    clip_high: float = number(0.2, least=0.0)
    dual_clip: float = number(10.0, above=1.0, most=1e6)
    kl_coef: float = number(0.01, least=0.0)
    advantage_shift: float = number(0.0)

    uses_behavior = True
    optimum: ClassVar[Optimum] = "none"

    @property
    def anchors(self) -> frozenset[str]:
        """The reference, unless there is no penalty."""
        return frozenset({"reference"} if self.kl_coef > 0 else ())

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: No reference log-probs, groups of one, or totals smaller than the batch.
        """
        log_ratio = logprobs(batch, "policy") - logprobs(batch, "behavior")
        return self._ppo(batch, totals, log_ratio, torch.ones_like(log_ratio))

    def _ppo(
        self,
        batch: TokenBatch,
        totals: Totals,
        log_ratio: Float[Tensor, "G K T"],
        weight: Float[Tensor, "G K T"],
    ) -> Output:
        """The clipped surrogate times a constant weight, plus the penalty."""
        check(batch, totals)
        a = groups.standardized(batch.rewards, STD_EPSILON) + self.advantage_shift
        low, high = 1 - self.clip_low, 1 + self.clip_high
        ppo = ratios.clipped_surrogate(log_ratio, a, low, high, self.dual_clip)
        loss = weight * ppo.loss
        c = weight * a[..., None] * ratios.ratio(log_ratio.detach()) * ppo.alive
        metrics = {"objective/clip_fraction": masked.share(~ppo.alive, batch.response_mask)}
        if self.kl_coef > 0:
            to_reference = logprobs(batch, "reference") - logprobs(batch, "policy")
            penalty = ratios.k3_penalty(to_reference)
            metrics["objective/kl_penalty"] = masked.sum_count(penalty, batch.response_mask)
            loss = loss + self.kl_coef * penalty
            c = c + self.kl_coef * ratios.k3_penalty_slope(to_reference.detach())
        summed = masked.without_padding(loss, batch.response_mask).sum()
        return output(batch, summed / totals.tokens, c, metrics)
