"""The LightningModule: one minibatch of groups, one optimizer step, blind to the objective."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import PoolBatch, TokenBatch
from offline_rlvr.config.schema import Train
from offline_rlvr.diagnostics.responses import response_record
from offline_rlvr.diagnostics.update import UpdateDiagnostics, probe_metrics
from offline_rlvr.diagnostics.window import EssWindow
from offline_rlvr.errors import DataError, IncompatibleError, QualityGateError
from offline_rlvr.objectives.interface import Objective
from offline_rlvr.policy import Policy, micro_batches
from offline_rlvr.policy.load import load_weights
from offline_rlvr.stream.data import UpdateData
from offline_rlvr.trainer.anchors import Anchor
from offline_rlvr.trainer.checkpoints import STATE
from offline_rlvr.trainer.mismatch import explain
from offline_rlvr.trainer.record import ResponseRows, UpdateResult


class OfflineModule(pl.LightningModule):
    """Trains a policy on updates 1, 2, ... of a plan, each exactly once.

    Args:
        policy: The learner.
        objective: The loss.
        train: Optimizer settings.
        data: Minibatches by update, for the anchors to score their window.
        anchors: The tables that the objective needs, by name (`reference`, `old`).
        probe: Unfiltered groups that are never trained on; None: no probe metrics.
        record: Receives each applied update.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        train: Train,
        data: UpdateData,
        anchors: dict[str, Anchor],
        probe: PoolBatch | None,
        record: Callable[[UpdateResult], None],
    ):
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy
        self.objective = objective
        self.train_config = train
        self.data = data
        self.anchors = anchors
        self.probe = probe
        self.record = record
        self.applied = 0
        self.drift = float("nan")  # of the latest update, nats per token
        self.noise_floor: float | None = None
        self.ess_window = EssWindow(updates=8)
        self.strict_loading = False  # the weights come from the checkpoint's `model/` folder

    def configure_optimizers(self) -> Any:
        """AdamW over what is trainable, with a linear warm-up to a constant learning rate."""
        config = self.train_config
        optimizer = torch.optim.AdamW(
            [parameter for parameter in self.policy.parameters() if parameter.requires_grad],
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        warmup = config.warmup_updates
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda done: min(1.0, (done + 1) / (warmup + 1))
        )
        return [optimizer], [schedule]

    def training_step(self, batch: tuple[int, PoolBatch], batch_idx: int) -> None:
        """One update: anchors if due, forward and backward by micro-batches, checks, one step."""
        update, groups = batch
        if update != self.applied + 1:
            raise DataError(f"received update {update}, expected update {self.applied + 1}")
        for anchor in self.anchors.values():
            if not anchor.ready(update):
                anchor.refresh(update, self.score_update)
        optimizer: Any = self.optimizers()
        optimizer.zero_grad(set_to_none=True)
        loss, diagnostics, records = self._accumulate(update, groups)
        norm = self._clip_gradients()
        self._require_finite(update, groups, "loss", loss)
        self._require_finite(update, groups, "gradient norm", norm)
        metrics = diagnostics.result(window=self.ess_window, grad_norm=float(norm))
        self._check_first_update(update, groups, metrics)
        metrics["train/loss"] = float(loss)
        metrics["train/learning_rate"] = optimizer.param_groups[0]["lr"]
        if self.probe is not None and (update - 1) % self.train_config.probe_every == 0:
            metrics |= self._probe_metrics(self.probe)
        optimizer.step()
        self.lr_schedulers().step()  # type: ignore[union-attr]
        self.applied = update
        self.drift = metrics["drift/abs_log_ratio"]
        ids, tokens = groups.group_ids.tolist(), groups.totals.tokens
        self.record(UpdateResult(update, ids, tokens, metrics, records))

    def _accumulate(
        self, update: int, groups: PoolBatch
    ) -> tuple[Float[Tensor, ""], UpdateDiagnostics, list[ResponseRows]]:
        """Gradients, loss and diagnostics of the whole update, micro-batch by micro-batch."""
        beta = getattr(self.objective, "beta", None)
        diagnostics = UpdateDiagnostics(beta)
        totals = groups.totals
        entropy = (update - 1) % self.train_config.log_entropy_every == 0
        loss = torch.zeros((), device=self.device, dtype=torch.float64)
        records: list[ResponseRows] = []
        for rows in self._rows(groups):
            part = groups.select(rows)
            scores = self.policy.score(part, entropy=entropy)
            self._require_finite(update, part, "policy log-probs", scores.logprobs.detach())
            tokens = TokenBatch(
                scores.logprobs,
                part.behavior_logprobs,
                part.rewards,
                part.response_mask,
                ref_logprobs=self._anchor("reference", update, rows, scores.logprobs),
                old_logprobs=self._anchor("old", update, rows, scores.logprobs),
            )
            output = self.objective(tokens, totals)
            self.manual_backward(output.loss)
            loss += output.loss.detach()
            diagnostics.add(tokens, output.coefficients, scores.entropy, output.metrics)
            record = response_record(tokens, output.coefficients, beta)
            records.append((part.group_ids, record))
        return loss, diagnostics, records

    def _anchor(
        self, name: str, update: int, rows: list[int], like: Float[Tensor, "G K T"]
    ) -> Float[Tensor, "G K T"] | None:
        if name not in self.anchors:
            return None
        table = self.anchors[name].logprobs(update)
        return table[rows][..., : like.shape[-1]].to(like.device)

    def score_update(self, update: int) -> Float[Tensor, "G K T"]:
        """The learner's log-probs of an update, with the micro-batches that will train on it."""
        _, groups = self.data[update - 1]
        return self._score(groups.to(self.device))

    @torch.no_grad()
    def _score(self, groups: PoolBatch) -> Float[Tensor, "G K T"]:
        scored = torch.zeros_like(groups.behavior_logprobs)
        for rows in self._rows(groups):
            values = self.policy.score(groups.select(rows)).logprobs
            scored[rows, :, : values.shape[-1]] = values
        return scored

    def _rows(self, groups: PoolBatch) -> list[list[int]]:
        budget = self.train_config.micro_batch_tokens
        return micro_batches(
            groups.prompt_lengths.tolist(), groups.response_lengths.tolist(), budget
        )

    def _probe_metrics(self, probe: PoolBatch) -> dict[str, float]:
        """Drift on groups that no filter chose and no update trains on."""
        probe = probe.to(self.device)
        scored = self._score(probe)
        tokens = TokenBatch(scored, probe.behavior_logprobs, probe.rewards, probe.response_mask)
        return probe_metrics([tokens])

    def _require_finite(self, update: int, groups: PoolBatch, what: str, value: Tensor) -> None:
        if torch.isfinite(value).all():
            return
        raise QualityGateError(
            f"update {update}: the {what} is not finite; no step was taken. "
            f"Groups: {groups.group_ids.tolist()}",
            hint="look at them with `offline-rlvr pool show`; lower train.learning_rate, or see "
            "whether the policy has drifted too far (drift/abs_log_ratio)",
        )

    def _check_first_update(
        self, update: int, groups: PoolBatch, metrics: dict[str, float]
    ) -> None:
        """Before the first step: does the untouched policy reproduce the stored log-probs?"""
        if update != 1:
            return
        self.noise_floor = metrics["drift/abs_log_ratio"]
        metrics["drift/noise_floor"] = self.noise_floor
        allowed = self.train_config.max_noise_floor
        if not self.noise_floor <= allowed:
            raise IncompatibleError(
                f"the untouched policy differs from the pool's stored log-probs by "
                f"{self.noise_floor:.3f} nats per token; at most {allowed} is allowed "
                f"(train.max_noise_floor). It looks like this: "
                f"{explain(self.policy, groups, allowed)}",
                hint="`offline-rlvr pool stats` shows what built it; nothing was trained",
            )

    def _clip_gradients(self) -> Float[Tensor, ""]:
        """Global gradient norm before clipping."""
        parameters = [p for p in self.policy.parameters() if p.requires_grad]
        limit = self.train_config.grad_clip
        return torch.nn.utils.clip_grad_norm_(parameters, float("inf") if limit is None else limit)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Our own state, beside what Lightning stores; the weights go into `model/`."""
        checkpoint["state_dict"] = {}
        checkpoint[STATE] = {
            "applied": self.applied,
            "noise_floor": self.noise_floor,
            "ess_window": self.ess_window.state_dict(),
            "anchors": {name: anchor.state() for name, anchor in self.anchors.items()},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Weights, anchors and windows as they were after update `applied`."""
        state = checkpoint[STATE]
        load_weights(self.policy, f"{state['folder']}/model")
        self.applied = state["applied"]
        self.noise_floor = state["noise_floor"]
        self.ess_window.load_state_dict(state["ess_window"])
        for name, anchor in self.anchors.items():
            if state["anchors"].get(name) is not None:
                anchor.restore(state["anchors"][name])
