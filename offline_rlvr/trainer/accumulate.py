"""Loss, gradients and diagnostics of a minibatch within a token budget."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import PoolBatch, TokenBatch, Totals
from offline_rlvr.diagnostics.responses import response_record
from offline_rlvr.diagnostics.update import UpdateDiagnostics
from offline_rlvr.errors import QualityGateError, ResourceError
from offline_rlvr.objectives.interface import Objective
from offline_rlvr.policy import CHECKPOINTED_BUDGETS, Policy, Scores, Slot, share_out
from offline_rlvr.trainer.memory import LEAST_TOKENS, beyond_retry
from offline_rlvr.trainer.phases import Phases
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.record import ResponseRows


@dataclass
class Accumulated:
    """Sums over the micro-batches of one update; the gradients are in the parameters.

    Attributes:
        loss: float64.
        diagnostics: Of all its groups.
        records: Response rows of each micro-batch.
    """

    loss: Float[Tensor, ""]
    diagnostics: UpdateDiagnostics
    records: list[ResponseRows] = field(default_factory=list)

    def __add__(self, other: "Accumulated") -> "Accumulated":
        return Accumulated(
            self.loss + other.loss,
            self.diagnostics + other.diagnostics,
            self.records + other.records,
        )

    def cpu(self) -> "Accumulated":
        """The same on the CPU, for other processes."""
        rows = [(ids, {name: v.cpu() for name, v in row.items()}) for ids, row in self.records]
        return Accumulated(self.loss.cpu(), self.diagnostics, rows)


class Accumulator:
    """Scores groups, and differentiates an objective on them, by micro-batches.

    Of several devices each takes its share of the groups; all get the results of all groups.

    A group too long for one forward pass takes two rounds: all its responses are scored without
    gradient, the objective gives the loss and its slope for every log-prob, and each piece is
    scored once more to send that slope back. The gradient is the same.

    Args:
        policy: The learner.
        objective: The loss.
        token_budget: Most tokens of a forward pass that keeps all its activations.
        phases: Measures where time and memory go.
        ranks: The devices that share the groups.
        pack_tokens: Groups share a forward pass up to so many tokens; None: up to the budget.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        token_budget: int,
        phases: Phases,
        ranks: Ranks | None = None,
        pack_tokens: int | None = None,
    ):
        self.policy = policy
        self.objective = objective
        self.token_budget = token_budget
        self.pack_tokens = pack_tokens
        self.phases = phases
        self.ranks = ranks or Ranks()
        self.always_checkpoint = policy.checkpointing

    def plan(self, groups: PoolBatch) -> list[Slot]:
        """This device's micro-batches."""
        prompts, responses = groups.prompt_lengths.tolist(), groups.response_lengths.tolist()
        shares = share_out(
            prompts,
            responses,
            self.token_budget,
            self.ranks.size,
            in_step=self.ranks.sharded,
            pack_tokens=self.pack_tokens,
            longest=1 if self.always_checkpoint else CHECKPOINTED_BUDGETS,
        )
        return shares[self.ranks.rank]

    def score(self, groups: PoolBatch) -> Float[Tensor, "G K T"]:
        """Log-probs by the forward passes that `add_gradients` makes of the same groups.

        Raises:
            MemoryError: Like torch's own errors of that kind, on every device: do it again after
                `shrink`.
        """
        shares = self.ranks.together(lambda: self._score_share(groups))
        return reduce(operator.add, shares)

    def add_gradients(
        self,
        update: int,
        groups: PoolBatch,
        totals: Totals,
        anchors: Mapping[str, Float[Tensor, "G K T"]],
        entropy: bool,
    ) -> Accumulated:
        """One forward and backward pass over all groups; gradients and results are sums over all.

        Args:
            update: Its number, for messages.
            groups: On the CPU.
            totals: Normalizers of the whole update.
            anchors: Log-probs of these groups under `reference` and `old`, those that the objective
                needs.
            entropy: Measure the policy's entropy, too.

        Raises:
            QualityGateError: A log-prob that is not finite.
            MemoryError: As `score`.
        """

        def work() -> Accumulated:
            return self._add_share(update, groups, totals, anchors, entropy).cpu()

        shares = self.ranks.together(work)
        if self.ranks.size > 1:
            with self.phases("reduction"), beyond_retry("adding gradients of all devices"):
                self.ranks.add_gradients(self.policy.parameters())
        return reduce(operator.add, shares)

    @torch.no_grad()
    def _score_share(self, groups: PoolBatch) -> Float[Tensor, "G K T"]:
        """Of this device, 0 for the groups of others."""
        scored = torch.zeros_like(groups.behavior_logprobs)
        for slot in self.plan(groups):
            if not slot.rows:
                self._fill(groups, slot.passes)
                continue
            values = self._by_pieces(groups.select(slot.rows), slot, entropy=False).logprobs.cpu()
            scored[slot.rows, :, : values.shape[-1]] = values
        # Below torch 2.13, weights cast without gradient would be used again with it.
        torch.clear_autocast_cache()
        return scored

    def _add_share(
        self,
        update: int,
        groups: PoolBatch,
        totals: Totals,
        anchors: Mapping[str, Float[Tensor, "G K T"]],
        entropy: bool,
    ) -> Accumulated:
        beta = getattr(self.objective, "beta", None)
        loss = torch.zeros((), device=self.policy.device, dtype=torch.float64)
        done = Accumulated(loss, UpdateDiagnostics(beta))
        for slot in self.plan(groups):
            once, rows = slot.passes == 1, slot.rows
            if not rows:
                self._fill_with_gradient(groups, slot.passes)
                continue
            part = groups.select(rows)
            with self.phases("forward"), torch.set_grad_enabled(once):
                scores = self._by_pieces(part, slot, entropy)
            require_finite(update, part, "policy log-probs", scores.logprobs.detach())
            if not once:
                scores.logprobs.requires_grad_()
            tokens = _token_batch(scores.logprobs, part, {n: v[rows] for n, v in anchors.items()})
            with self.phases("objective"):
                output = self.objective(tokens, totals)
            if once:
                with self.phases("backward"):
                    output.loss.backward()
            else:
                (slope,) = torch.autograd.grad(output.loss, scores.logprobs)
                self._send_back(part, slot, slope)
            with self.phases("diagnostics"):
                done.loss += output.loss.detach()
                done.diagnostics.add(tokens, output.coefficients, scores.entropy, output.metrics)
                record = response_record(tokens, output.coefficients, beta)
                done.records.append((part.group_ids, record))
        return done

    def shrink(self, reason: str) -> tuple[int, int]:
        """Take half of the budget after running out of memory; returns it before and now.

        Raises:
            ResourceError: Every forward pass is as small as it gets already.
        """
        before = self.token_budget
        if before <= LEAST_TOKENS:
            raise ResourceError(
                f"out of memory even with {before} tokens per forward pass ({reason})",
                hint="use model.lora, a smaller model, shorter responses "
                "(selection.max_response_tokens) or a device with more memory; every finished "
                "update up to the last checkpoint is kept",
            )
        self.token_budget = before // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return before, self.token_budget

    def _send_back(self, part: PoolBatch, slot: Slot, slope: Float[Tensor, "G K T"]) -> None:
        for piece in slot.pieces:
            with self.phases("forward"):
                again = self._forward(part.responses(piece), entropy=False).logprobs
            with self.phases("backward"):
                again.backward(slope[:, piece, : again.shape[-1]])
        for _ in range(slot.passes - len(slot.pieces)):
            self._fill_with_gradient(part, 1)

    def _by_pieces(self, part: PoolBatch, slot: Slot, entropy: bool) -> Scores:
        if slot.passes == 1:
            return self._forward(part, entropy)
        logprobs = torch.zeros_like(part.behavior_logprobs, device=self.policy.device)
        entropies = torch.zeros_like(logprobs) if entropy else None
        for piece in slot.pieces:
            scores = self._forward(part.responses(piece), entropy)
            width = scores.logprobs.shape[-1]
            logprobs[:, piece, :width] = scores.logprobs
            if entropies is not None and scores.entropy is not None:
                entropies[:, piece, :width] = scores.entropy
        self._fill(part, slot.passes - len(slot.pieces))
        return Scores(logprobs, entropies)

    def _fill(self, groups: PoolBatch, passes: int) -> list[Float[Tensor, "1 1 T"]]:
        """Forward passes over one response that other devices wait for; nothing is kept of them."""
        one = groups.select([0]).responses(slice(0, 1))
        return [self._forward(one, entropy=False).logprobs for _ in range(passes)]

    def _fill_with_gradient(self, groups: PoolBatch, passes: int) -> None:
        """The forward and backward passes of a slot of other devices, with a gradient of zero."""
        if passes > 1:
            with torch.no_grad():
                self._fill(groups, passes)
        for _ in range(passes):
            (logprobs,) = self._fill(groups, 1)
            logprobs.backward(torch.zeros_like(logprobs))

    def _forward(self, part: PoolBatch, entropy: bool) -> Scores:
        tokens = int(part.prompt_lengths.sum() + part.response_lengths.sum())
        checkpoint = self.always_checkpoint or tokens > self.token_budget
        self.policy.checkpoint_activations(checkpoint and torch.is_grad_enabled())
        return self.policy.score(part, entropy=entropy)


def _token_batch(
    policy_logprobs: Float[Tensor, "G K T"],
    part: PoolBatch,
    anchors: Mapping[str, Float[Tensor, "G K T0"]],
) -> TokenBatch:
    """What the objective sees, on the policy's device; anchors are as wide as the minibatch."""
    device, width = policy_logprobs.device, policy_logprobs.shape[-1]
    moved = {name: values[..., :width].to(device) for name, values in anchors.items()}
    return TokenBatch(
        policy_logprobs,
        part.behavior_logprobs.to(device),
        part.rewards.to(device),
        part.response_mask.to(device),
        ref_logprobs=moved.get("reference"),
        old_logprobs=moved.get("old"),
    )


def require_finite(update: int, groups: PoolBatch, what: str, value: Tensor) -> None:
    """Refuse a value that no step may be taken on, naming the groups it comes from.

    Raises:
        QualityGateError: It is not finite.
    """
    if torch.isfinite(value).all():
        return
    raise QualityGateError(
        f"update {update}: the {what} is not finite; no step was taken. "
        f"Groups: {groups.group_ids.tolist()}",
        hint="look at them with `offline-rlvr pool show`; lower train.learning_rate, or see "
        "whether the policy has drifted too far (drift/abs_log_ratio)",
    )
