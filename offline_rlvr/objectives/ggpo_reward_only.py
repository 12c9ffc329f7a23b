"""GGPO without its reference term: the reward-only ablation."""

from dataclasses import dataclass
from typing import ClassVar

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics.logspace import softmax_weights
from offline_rlvr.objectives.interface import Optimum, Output, check, score_output
from offline_rlvr.objectives.parameters import Parameters, number


@dataclass(frozen=True)
class GgpoRewardOnly(Parameters):
    """GGPO's coefficients from rewards alone.

        c_i = (m q_i - 1) / sqrt(m - 1),  q = softmax(r / beta)
        L   = -(1/N) sum_i sg(c_i) s_i

    All-equal rewards give exactly 0.

    Args:
        beta: Temperature in units of reward, > 0.

    Reference:
        *Gibbs-Gap Policy Optimization*, the reward-only ablation of Eq. (29).

    Differs from the paper:
        nothing known.

    Reduces to:
        maxrl / sqrt(m-1) as beta -> 0.
    """

    beta: float = number(0.01, above=0.0)

    anchors = frozenset()
    uses_behavior = False
    optimum: ClassVar[Optimum] = "none"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: Groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        size = batch.rewards.shape[-1]
        q = softmax_weights(batch.rewards.double() / self.beta)
        return score_output(batch, totals, (size * q - 1) / (size - 1) ** 0.5)
