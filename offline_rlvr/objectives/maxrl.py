"""MaxRL: the success-normalized advantage."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.errors import BatchError
from offline_rlvr.numerics.groups import centered, group_mean
from offline_rlvr.objectives.interface import Optimum, Output, check, score_output
from offline_rlvr.objectives.parameters import Parameters


@dataclass(frozen=True)
class Maxrl(Parameters):
    """`L = -(1/N) sum_i sg(A_i) s_i` with `A = (r - mean(r)) / mean(r)`, 0 where the mean is 0.

    Rewards are >= 0: the formula counts successes. All-equal rewards give exactly 0. No
    hyper-parameters.

    Reference:
        Tajwar et al. (2026), the form compared in *Gibbs-Gap Policy Optimization*, appendix C.

    Differs from the paper:
        used on a fixed pool without importance weights, with a token mean.

    Reduces to:
        pg / mean(r) where the policy is the behavior and groups share one mean reward.
    """

    anchors = frozenset()
    uses_behavior = False
    optimum: ClassVar[Optimum] = "none"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: A negative reward, groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        if (batch.rewards < 0).any():
            group, response = (batch.rewards < 0).nonzero()[0].tolist()
            value = float(batch.rewards[group, response])
            raise BatchError(
                f"group {group}, response {response} has reward {value}; "
                "maxrl divides by the mean reward and needs rewards >= 0"
            )
        mean = group_mean(batch.rewards)
        a = centered(batch.rewards) / torch.where(mean > 0, mean, 1.0)
        return score_output(batch, totals, a)
