"""CISPO: policy gradient with a clipped, detached importance weight."""

from dataclasses import dataclass
from typing import ClassVar

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics import groups, masked, ratios
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, score_output
from offline_rlvr.objectives.parameters import Parameters, number


@dataclass(frozen=True)
class Cispo(Parameters):
    """`L = -(1/N) sum_t sg(clip(rho_t, 1 - clip_low, 1 + clip_high) A) p_t`, `A = r - mean(r)`.

    A clipped weight keeps its token's gradient. All-equal rewards give exactly 0.

    Args:
        clip_high: The weight is at most `1 + clip_high`, >= 0.
        clip_low: The weight is at least `1 - clip_low`, in [0, 1]; null: no lower bound.

    Reference:
        the CISPO baseline of arXiv 2610.18738, section 4 (from the MiniMax-M1 report, arXiv
        2506.13585).

    Differs from the paper:
        nothing known.

    Reduces to:
        pg where every ratio lies inside the clip.
    """

    clip_high: float = number(0.28, least=0.0)
    clip_low: float | None = number(None, least=0.0, most=1.0, optional=True)

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
        low = 0.0 if self.clip_low is None else 1 - self.clip_low
        rho = ratios.ratio(log_ratio)
        weight = rho.clamp(low, 1 + self.clip_high)
        clipped = masked.share(rho != weight, batch.response_mask)
        c = weight * groups.centered(batch.rewards)[..., None]
        return score_output(batch, totals, c, {"objective/clip_fraction": clipped})
