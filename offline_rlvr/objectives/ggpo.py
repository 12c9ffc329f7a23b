"""GGPO: Gibbs-gap policy optimization."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.numerics.logspace import log_mean_exp_gap, softmax_weights
from offline_rlvr.objectives.interface import Optimum, Output, check, logprobs, output
from offline_rlvr.objectives.parameters import Parameters, number


@dataclass(frozen=True)
class Ggpo(Parameters):
    """The group's log-mean-exp gap of adjusted rewards, zero exactly at the Gibbs policy.

        R_i = r_i - beta (s_i - s_ref_i)
        J_g = beta log((1/m) sum_i exp(R_i / beta)) - (1/m) sum_i R_i
        L   = m / (N sqrt(m - 1)) sum_g J_g / beta

    Differentiated directly, which gives `c_i = (m q_i - 1) / sqrt(m - 1)` with `q = softmax(R /
    beta)`: beta acts through q only. Behavior log-probs are not read: no importance weight.
    All-equal rewards leave the gap of the log-ratios alone, which is 0 right after a refresh.

    Args:
        beta: Temperature of the Gibbs target in units of reward, > 0.

    Reference:
        *Gibbs-Gap Policy Optimization for Off-Policy RL with Verifiable Rewards*, Eq. (11),
        gradient Eq. (9), coefficients Eq. (29). It needs a refreshed reference: in the paper a
        fixed one costs 13.6 points.

    Differs from the paper:
        nothing known; float64 throughout.

    Reduces to:
        ggpo_reward_only where the policy is the reference (gradient).
        agro times sqrt(m-1) / (m beta) where R / beta hardly spreads (gradient).
    """

    beta: float = number(0.01, above=0.0)

    anchors = frozenset({"reference"})
    uses_behavior = False
    optimum: ClassVar[Optimum] = "gibbs"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output:
        """See the class.

        Raises:
            BatchError: No reference log-probs, groups of one, or totals smaller than the batch.
        """
        check(batch, totals)
        adjusted = self.adjusted_rewards(batch)
        size = batch.rewards.shape[-1]
        scale = (size - 1) ** 0.5
        loss = log_mean_exp_gap(adjusted).sum() * size / (totals.tokens * scale)
        c = (size * softmax_weights(adjusted.detach()) - 1) / scale
        return output(batch, loss, c)

    def adjusted_rewards(self, batch: TokenBatch) -> Float[Tensor, "G K"]:
        """`R / beta = r / beta - Delta`; divided first, so that a small beta costs Delta no
        digits."""
        delta = (logprobs(batch, "policy") - logprobs(batch, "reference")).sum(-1)
        return batch.rewards.double() / self.beta - delta
