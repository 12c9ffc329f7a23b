"""What every objective is: a frozen dataclass, called with a batch and the update's totals.

    out = objective(batch, totals)      # TokenBatch of G groups, Totals of the whole update
    out.loss.backward()                 # the shares of an update's micro-batches sum to its loss

Every loss here is a token mean over the *update*: with `N = totals.tokens`,
`dL/dp_it = -c_it / N` where `c` is `out.coefficients` (a shared test measures it). All arithmetic
is in float64 on values from which padding has been removed, whatever the dtype of the batch;
gradients come back in that dtype.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.errors import BatchError
from offline_rlvr.numerics import masked
from offline_rlvr.numerics.masked import SumCount

#: Where an objective's expected update vanishes in the tabular laboratory, at its default or stated
#: parameters:
#: `gibbs` at pi_ref exp(r / beta); `gibbs_shifted` at the same with beta m / (m - 1); `none` at
#: neither.
Optimum = Literal["gibbs", "gibbs_shifted", "none"]

Which = Literal["policy", "behavior", "reference", "old"]
_FIELDS: dict[Which, str] = {
    "policy": "policy_logprobs",
    "behavior": "behavior_logprobs",
    "reference": "ref_logprobs",
    "old": "old_logprobs",
}


@dataclass(frozen=True)
class Output:
    """What an objective returns for one micro-batch.

    Attributes:
        loss: This micro-batch's share of the update's loss (float64 scalar, carries the gradient).
        metrics: `objective/...` keys; add them over micro-batches and ranks with `+`, then read
            `.mean`.
        coefficients: [G, K] or [G, K, T] detached: `c = -N dL/dp`, what each token's score gradient
            is multiplied with. A per-response coefficient is shared by the response's tokens.
    """

    loss: Float[Tensor, ""]
    metrics: dict[str, SumCount]
    coefficients: Float[Tensor, "G K"] | Float[Tensor, "G K T"]


class Objective(Protocol):
    """The interface the trainer sees; it never asks which objective it holds.

    Attributes:
        anchors: The anchors it reads, a subset of {"reference", "old"}.
        uses_behavior: Whether it reads the behavior log-probs.
        optimum: The policy at which its expected update vanishes, see `Optimum`.
    """

    @property
    def anchors(self) -> frozenset[str]: ...

    @property
    def uses_behavior(self) -> bool: ...

    @property
    def optimum(self) -> Optimum: ...

    def adapted(self, metrics: Mapping[str, int | float]) -> dict[str, Any]:
        """Hyper-parameters that the next update has otherwise, by this one's metrics."""
        ...

    def __call__(self, batch: TokenBatch, totals: Totals) -> Output: ...


def logprobs(batch: TokenBatch, which: Which) -> Float[Tensor, "G K T"]:
    """One of the batch's log-probs in float64 without padding; only the policy's carries a
    gradient.

    Raises:
        BatchError: The batch lacks this anchor.
    """
    if which in ("reference", "old"):
        batch.require(which)
    values = masked.without_padding(getattr(batch, _FIELDS[which]), batch.response_mask)
    return values if which == "policy" else values.detach()


def check(batch: TokenBatch, totals: Totals) -> None:
    """Refuse what no objective can use; every objective calls it first.

    Raises:
        BatchError: Groups of one response, or totals smaller than this very batch.
    """
    groups, size = batch.rewards.shape
    if size < 2:
        raise BatchError("groups of 1 response; an objective compares at least 2 responses")
    tokens = int(batch.response_mask.sum())
    if totals.groups < groups or totals.tokens < tokens:
        raise BatchError(
            f"totals are {totals.groups} groups and {totals.tokens} tokens, but this batch "
            f"alone has {groups} and {tokens}; totals belong to the whole update, all of its "
            "micro-batches and ranks"
        )


def score_output(
    batch: TokenBatch,
    totals: Totals,
    coefficients: Float[Tensor, "G K"] | Float[Tensor, "G K T"],
    metrics: dict[str, SumCount] | None = None,
) -> Output:
    """The output of the surrogate `L = -(1/N) sum_it sg(c_it) p_it`."""
    c = coefficients.detach()
    p = logprobs(batch, "policy")
    per_token = c if c.ndim == 3 else c[..., None]
    return output(batch, -(per_token * p).sum() / totals.tokens, c, metrics)


def output(
    batch: TokenBatch,
    loss: Float[Tensor, ""],
    coefficients: Float[Tensor, "G K"] | Float[Tensor, "G K T"],
    metrics: dict[str, SumCount] | None = None,
) -> Output:
    """An output with the metric that all objectives share: the token mean of `|c|`."""
    c = coefficients.detach()
    if c.ndim == 3:
        c = masked.without_padding(c, batch.response_mask)
    per_token = (c if c.ndim == 3 else c[..., None]).abs().expand(batch.response_mask.shape)
    size = masked.sum_count(per_token, batch.response_mask)
    return Output(loss, {"objective/coefficient_abs": size, **(metrics or {})}, c)
