"""Importance-weighted policy gradient without clip and without KL term."""

from dataclasses import dataclass
from typing import ClassVar

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics import groups, masked, ratios
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, score_output
from offline_rlvr.objectives.parameters import Parameters


@dataclass(frozen=True)
class Pg(Parameters):
    """`L = -(1/N) sum_t sg(rho_t A) p_t` with `rho = exp(p - mu)` and `A = r - mean(r)`.

    All-equal rewards give exactly 0. It has no hyper-parameters.

    Reference:
        the PG baseline of arXiv 2610.18738, section 4.

    Differs from the paper:
        a token ratio saturates at e^30 (counted in `objective/ratio_saturated`).

    Reduces to:
        REINFORCE with the group mean as baseline where the policy is the behavior.
    """

    anchors = frozenset()
    uses_behavior = True
    optimum: ClassVar[Optimum] = "none"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: Groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        log_ratio = logprobs(batch, "policy").detach() - logprobs(batch, "behavior")
        c = ratios.ratio(log_ratio) * groups.centered(batch.rewards)[..., None]
        beyond = masked.share(ratios.saturated(log_ratio), batch.response_mask)
        return score_output(batch, totals, c, {"objective/ratio_saturated": beyond})
