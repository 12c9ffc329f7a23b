"""The metrics of one update, accumulated over its micro-batches and ranks."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import TokenBatch
from offline_rlvr.diagnostics import drift, gibbs
from offline_rlvr.diagnostics.catalogue import PROBE_OF, SPLITS, STANDARD_ERROR
from offline_rlvr.diagnostics.sampling_error import standard_errors
from offline_rlvr.diagnostics.window import EssWindow
from offline_rlvr.numerics.logspace import LogWeights
from offline_rlvr.numerics.masked import SumCount, share, sum_count, token_mean


class UpdateDiagnostics:
    """Accumulates every metric of the catalogue over the micro-batches of one update.

        acc = UpdateDiagnostics(beta=0.01)
        for micro_batch in update:
            out = objective(batch, totals)
            acc.add(batch, coefficients=out.coefficients, metrics=out.metrics)
        values = acc.result(window=ess_window)

    Only sums, counts and log-sums are held, so accumulators of several ranks merge with `+`; a
    pickle of one, as `all_gather_object` makes it, holds plain numbers. A metric without a token,
    response or group behind it is absent, never NaN.

    Args:
        beta: Temperature of the `gibbs/*` metrics, in units of reward; None: no such metrics. They
            are also absent for batches without reference log-probs.
    """

    def __init__(self, beta: float | None = None) -> None:
        self._beta = beta
        self._means: dict[str, SumCount] = {}
        self._weights: dict[str, LogWeights] = {}
        self._group_sizes: list[Float[Tensor, " G"]] = []

    @torch.no_grad()
    def add(
        self,
        batch: TokenBatch,
        coefficients: Float[Tensor, "G K"] | Float[Tensor, "G K T"] | None = None,
        entropy: Float[Tensor, "G K T"] | None = None,
        metrics: dict[str, SumCount] | None = None,
    ) -> None:
        """Add a micro-batch.

        Args:
            batch: The scored batch, as the objective saw it.
            coefficients: The objective's, see `Output.coefficients`.
            entropy: Of the policy at each response token, nats; on logging updates, which also
                measure the drift by position and by behavior probability.
            metrics: The objective's own, see `Output.metrics`.
        """
        to_behavior = drift.log_ratio(batch, batch.behavior_logprobs)
        reference = batch.ref_logprobs
        to_reference = None if reference is None else drift.log_ratio(batch, reference)
        for part, among in drift.parts(batch).items():
            mask = batch.response_mask & among[..., None]
            found = drift.token_metrics(to_behavior, mask)
            if to_reference is not None:
                found |= drift.reference_metrics(to_reference, mask)
            if entropy is not None:
                found["policy/entropy"] = sum_count(entropy, mask)
            for key, pair in found.items():
                self._add_mean(key + part, pair)
            self._add_weights(part, drift.response_weights(to_behavior, among))
        if entropy is not None:  # a logging update
            for key, pair in drift.binned_metrics(batch, to_behavior).items():
                self._add_mean(key, pair)
        if coefficients is not None:
            mean = _per_response(batch, coefficients)
            key = "objective/negative_correct_fraction"
            self._add_mean(key, share(mean < 0, drift.right(batch)))
        if self._beta is not None and batch.ref_logprobs is not None:
            for key, value in gibbs.group_metrics(batch, self._beta).items():
                self._add_mean(key, value)
            self._group_sizes.append(gibbs.effective_size(batch, self._beta))
        for key, value in (metrics or {}).items():
            self._add_mean(key, value)

    def result(
        self,
        window: EssWindow | None = None,
        grad_norm: float | None = None,
        noise_floor: float | None = None,
    ) -> dict[str, float]:
        """The update's metrics by key. Call once per update: it pushes this update into the window.

        Args:
            window: Rolling window for `weights/ess`.
            grad_norm: Before clipping.
            noise_floor: `drift/abs_log_ratio` of the first update, whose policy is still untouched.
        """
        state = self.state_dict()
        values = {key: total / count for key, (total, count) in state["means"].items() if count}
        weights = {part: LogWeights(*map(_scalar, w)) for part, w in state["weights"].items()}
        values |= {f"weights/ess_update{part}": w.ess for part, w in weights.items() if w.count > 0}
        if state["group_sizes"]:
            values["gibbs/ess_q_median"] = median(state["group_sizes"])
        if window is not None:
            window.push(weights)
            values |= window.result()
        extra = {"train/grad_norm": grad_norm, "drift/noise_floor": noise_floor}
        return values | {key: value for key, value in extra.items() if value is not None}

    def probe_result(self) -> dict[str, float]:
        """The drift metrics as `probe/*`, of an accumulator that was fed the probe slice."""
        values = self.result()
        return {
            probe + part: values[key + part]
            for probe, key in PROBE_OF.items()
            for part in ("", *SPLITS)
            if key + part in values
        }

    def __add__(self, other: "UpdateDiagnostics") -> "UpdateDiagnostics":
        merged = UpdateDiagnostics(self._beta)
        for source in (self, other):
            for key, pair in source._means.items():
                merged._add_mean(key, pair)
            for part, w in source._weights.items():
                merged._add_weights(part, w)
            merged._group_sizes += source._group_sizes
        return merged

    def state_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, fetched from the device in three transfers."""
        means = _fetched([(v.sum, v.count) for v in self._means.values()])
        weights = _fetched([(w.log_sum, w.log_sum_sq, w.count) for w in self._weights.values()])
        sizes = torch.cat(self._group_sizes).tolist() if self._group_sizes else []
        return {
            "beta": self._beta,
            "means": dict(zip(self._means, means, strict=True)),
            "weights": dict(zip(self._weights, weights, strict=True)),
            "group_sizes": sizes,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "UpdateDiagnostics":
        """The accumulator behind a `state_dict`."""
        made = cls(state["beta"])
        made._means = {k: SumCount(*map(_scalar, v)) for k, v in state["means"].items()}
        made._weights = {k: LogWeights(*map(_scalar, v)) for k, v in state["weights"].items()}
        if state["group_sizes"]:
            made._group_sizes = [torch.tensor(state["group_sizes"], dtype=torch.float64)]
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return UpdateDiagnostics.from_state, (self.state_dict(),)

    def _add_mean(self, key: str, pair: SumCount) -> None:
        self._means[key] = self._means[key] + pair if key in self._means else pair

    def _add_weights(self, part: str, w: LogWeights) -> None:
        self._weights[part] = self._weights[part] + w if part in self._weights else w


def probe_metrics(batches: Sequence[TokenBatch]) -> dict[str, float]:
    """The drift metrics of the probe slice, as `probe/*`, with their standard errors."""
    acc = UpdateDiagnostics()
    for batch in batches:
        acc.add(batch)
    errors = standard_errors(batches)
    return acc.probe_result() | {
        probe + STANDARD_ERROR: errors[key] for probe, key in PROBE_OF.items() if key in errors
    }


def _per_response(
    batch: TokenBatch, coefficients: Float[Tensor, "G K"] | Float[Tensor, "G K T"]
) -> Float[Tensor, "G K"]:
    c = coefficients.detach()
    return token_mean(c, batch.response_mask) if c.ndim == 3 else c.double()


def _fetched(scalars: list[tuple[Tensor, ...]]) -> list[list[float]]:
    return torch.stack([torch.stack(row) for row in scalars]).tolist() if scalars else []


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
