"""AGRO: leave-one-out centered adjusted rewards."""

from dataclasses import dataclass
from typing import ClassVar

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics.groups import leave_one_out
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, score_output
from offline_rlvr.objectives.parameters import Parameters, number


@dataclass(frozen=True)
class Agro(Parameters):
    """`L = -(1/N) sum_i sg(A_i) s_i`, A the leave-one-out centered `z_i = r_i - beta (s_i -
    s_ref_i)`.

    No ratio, clip, importance weight, KL term or entropy bonus. All-equal rewards leave the
    centered log-ratios.

    Args:
        beta: Weight of the log-ratio to the reference, in units of reward per nat, >= 0.

    Reference:
        Tang et al. (2026) as described in *Gibbs-Gap Policy Optimization*, appendix C.

    Differs from the paper:
        as in the GGPO paper: without the exterior factor beta, with a token mean.

    Reduces to:
        pg times m / (m-1) at beta = 0 where the policy is the behavior.
    """

    beta: float = number(0.01, least=0.0)

    uses_behavior = False
    optimum: ClassVar[Optimum] = "gibbs"

    @property
    def anchors(self) -> frozenset[str]:
        """The reference, unless beta is 0."""
        return frozenset({"reference"} if self.beta > 0 else ())

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: No reference log-probs, groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        z = batch.rewards.double()
        if self.beta > 0:
            delta = logprobs(batch, "policy").detach() - logprobs(batch, "reference")
            z = z - self.beta * delta.sum(-1)
        return score_output(batch, totals, leave_one_out(z))
