"""GRPO with truncated importance sampling between the behavior and the block's old policy."""

import math
from dataclasses import dataclass, replace

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics import masked, ratios
from offline_rlvr.objectives.grpo import Grpo
from offline_rlvr.objectives.interface import Output, logprobs
from offline_rlvr.objectives.parameters import number


@dataclass(frozen=True)
class GrpoTis(Grpo):
    """GRPO whose ratio starts at the block's old policy, its surrogate weighted by `min(old / mu,
    cap)`.

        v_t = min(exp(old_t - mu_t), tis_cap)
        rho = exp(p - old)
        L   = (1/N) sum_t v_t l_t(rho) + kl_coef (exp(ref_t - p_t) - (ref_t - p_t) - 1)

    with GRPO's clipped `l_t` and advantage; the weight does not multiply the penalty. `mu`, `old`
    and `p` are three different policies; `old` is the learner at the start of its block of updates.
    All-equal rewards give A = 0 exactly and leave the penalty.

    Args:
        clip_low: Lower clip of the ratio at `1 - clip_low`, in [0, 1].
        clip_high: Upper clip at `1 + clip_high`, >= 0.
        dual_clip: Bound of the ratio for negative advantages, > 1.
        kl_coef: Weight of the penalty, >= 0; at 0 no reference is needed.
        advantage_shift: Added to every advantage; 0 is the method.
        tis_cap: Largest importance weight of a token, > 0.

    Reference:
        *Gibbs-Gap Policy Optimization*, appendix C.2: blocks of 8 updates, cap 2.

    Differs from the paper:
        the penalty goes on along its tangent beyond 30 nats, which keeps gradients finite.

    Reduces to:
        grpo where the old policy is the behavior and tis_cap >= 1.
    """

    tis_cap: float = number(2.0, above=0.0)

    @property
    def anchors(self) -> frozenset[str]:
        """The old policy; also the reference, unless there is no penalty."""
        return frozenset({"old", "reference"} if self.kl_coef > 0 else {"old"})

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: A missing anchor, groups of one, or totals smaller than the batch.
        """
        old = logprobs(batch, "old")
        to_behavior = old - logprobs(batch, "behavior")
        weight = ratios.ratio(to_behavior, cap=self.tis_cap)
        out = self._ppo(batch, totals, logprobs(batch, "policy") - old, weight)
        capped = masked.share(to_behavior > math.log(self.tis_cap), batch.response_mask)
        return replace(out, metrics={**out.metrics, "objective/tis_capped": capped})
