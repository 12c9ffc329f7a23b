"""GGPO with token log-ratios clipped inside the weights."""

from dataclasses import dataclass
from typing import ClassVar

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics.logspace import softmax_weights
from offline_rlvr.numerics.masked import share
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, score_output
from offline_rlvr.objectives.parameters import Parameters, number


@dataclass(frozen=True)
class GgpoClipped(Parameters):
    """GGPO's coefficients from clipped log-ratios, times the unclipped score.

        R_i = r_i - beta sum_t clip(p_it - ref_it, -clip, clip)
        c_i = (m q_i - 1) / sqrt(m - 1),  q = softmax(R / beta)
        L   = -(1/N) sum_i sg(c_i) s_i

    A saturated token keeps its score gradient; differentiating through the clip would be another
    update.

    Args:
        beta: Temperature in units of reward, > 0.
        clip: Bound of one token's log-ratio to the reference, nats, >= 0.

    Reference:
        *Gibbs-Gap Policy Optimization*, Eq. (12).

    Differs from the paper:
        nothing known.

    Reduces to:
        ggpo where no token log-ratio exceeds `clip` (gradient).
        ggpo_reward_only at clip = 0.
    """

    beta: float = number(0.01, above=0.0)
    clip: float = number(0.05, least=0.0)

    anchors = frozenset({"reference"})
    uses_behavior = False
    #: The Gibbs policy only where each of its token log-ratios is within the clip.
    optimum: ClassVar[Optimum] = "none"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: No reference log-probs, groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        log_ratio = logprobs(batch, "policy").detach() - logprobs(batch, "reference")
        delta = log_ratio.clamp(-self.clip, self.clip).sum(-1)
        size = batch.rewards.shape[-1]
        q = softmax_weights(batch.rewards.double() / self.beta - delta)
        clipped = share(log_ratio.abs() > self.clip, batch.response_mask)
        c = (size * q - 1) / (size - 1) ** 0.5
        return score_output(batch, totals, c, {"objective/clip_fraction": clipped})
