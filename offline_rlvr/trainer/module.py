"""The LightningModule: one minibatch of groups, one optimizer step, blind to the objective."""

from collections.abc import Callable
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from torch import Tensor

from offline_rlvr.batch import PoolBatch, TokenBatch
from offline_rlvr.config.schema import Train
from offline_rlvr.diagnostics.update import probe_metrics
from offline_rlvr.diagnostics.window import EssWindow
from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.policy.load import load_weights
from offline_rlvr.stream.data import UpdateData
from offline_rlvr.trainer import sharding
from offline_rlvr.trainer.accumulate import Accumulated, Accumulator, require_finite
from offline_rlvr.trainer.anchors import Anchor
from offline_rlvr.trainer.checkpoints import STATE
from offline_rlvr.trainer.decisions import STOP, Decider, Decision, told
from offline_rlvr.trainer.memory import beyond_retry, is_out_of_memory
from offline_rlvr.trainer.mismatch import explain
from offline_rlvr.trainer.record import UpdateResult
from offline_rlvr.trainer.watch import Metrics

T = TypeVar("T")


class OfflineModule(pl.LightningModule):
    """Trains a policy on updates 1, 2, ... of a plan, each exactly once.

    Args:
        accumulator: The learner with its loss, within a token budget.
        train: Optimizer settings.
        data: Minibatches by update, for the anchors to score their window.
        anchors: The tables that the objective needs, by name (`reference`, `old`).
        decider: Says what follows from each update's metrics.
        probe: Unfiltered groups that are never trained on; None: no probe metrics.
        record: Receives each applied update.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        train: Train,
        data: UpdateData,
        anchors: dict[str, Anchor],
        decider: Decider,
        probe: PoolBatch | None,
        record: Callable[[UpdateResult], None],
    ):
        super().__init__()
        self.automatic_optimization = False
        self.accumulator = accumulator
        self.policy = accumulator.policy
        self.phases = accumulator.phases
        self.ranks = accumulator.ranks
        self.train_config = train
        self.data = data
        self.anchors = anchors
        self.decider = decider
        self.stopped = False  # by train.stop_when, with the update that is applied
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
            fused=True,  # one pass over the weights: 4x faster on a CPU
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
        with self.phases("anchors"):
            for anchor in self.anchors.values():
                if not anchor.ready(update):
                    self._within_memory(lambda a=anchor: a.refresh(update, self.score_update))
        done = self._within_memory(lambda: self._accumulate(update, groups))
        optimizer: Any = self.optimizers()
        with self.phases("optimizer"), beyond_retry("clipping gradients"):
            norm = self._clip_gradients()
        require_finite(update, groups, "loss", done.loss)
        require_finite(update, groups, "gradient norm", norm)
        with self.phases("diagnostics"):
            metrics = done.diagnostics.result(window=self.ess_window, grad_norm=float(norm))
        self._check_first_update(update, groups, metrics)
        metrics["train/loss"] = float(done.loss)
        metrics["train/learning_rate"] = optimizer.param_groups[0]["lr"]
        metrics["train/micro_batch_tokens"] = self.accumulator.token_budget
        if self.probe is not None and (update - 1) % self.train_config.probe_every == 0:
            with self.phases("probe"):
                probe = self.probe
                metrics |= self._within_memory(lambda: self._probe_metrics(probe))
        decisions = self._decide(update, metrics)
        with self.phases("optimizer"), beyond_retry("taking the optimizer's step"):
            optimizer.step()
            self.lr_schedulers().step()  # type: ignore[union-attr]
        self.applied = update
        self.drift = metrics["drift/abs_log_ratio"]
        ids, tokens = groups.group_ids.tolist(), groups.totals.tokens
        with self.phases("record"):
            self.record(UpdateResult(update, ids, tokens, metrics, done.records, decisions))

    def _decide(self, update: int, metrics: Metrics) -> list[Decision]:
        """In every process, what the metrics of the first one decide."""
        metrics = self.ranks.from_first(lambda: metrics)
        if update == 1:
            self.decider.require(metrics)
        decisions = self.decider(metrics)
        self.accumulator.objective = self.decider.objective
        self.stopped = any(decision["decision"] == STOP for decision in decisions)
        for decision in decisions:
            print(f"after update {update}: {told(decision)}", flush=True)
        return decisions

    def _accumulate(self, update: int, groups: PoolBatch) -> Accumulated:
        """Gradients, loss and diagnostics of the whole update, from a clean start."""
        self.optimizers().zero_grad()  # type: ignore[union-attr]
        tables = {name: anchor.logprobs(update) for name, anchor in self.anchors.items()}
        entropy = (update - 1) % self.train_config.log_entropy_every == 0
        return self.accumulator.add_gradients(update, groups, groups.totals, tables, entropy)

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Do some work, all of it again with smaller micro-batches when the memory is too small."""
        while True:
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error).split("\n")[0] or type(error).__name__
            # Out here the error no longer holds the activations that it was raised among.
            before, now = self.accumulator.shrink(reason)
            print(
                f"out of memory in update {self.applied + 1} with {before:,} tokens per forward "
                f"pass; the whole update is done again with {now:,}",
                flush=True,
            )

    def score_update(self, update: int) -> Float[Tensor, "G K T"]:
        """The learner's log-probs of an update, with the micro-batches that will train on it."""
        return self.accumulator.score(self.data[update - 1][1])

    def _probe_metrics(self, probe: PoolBatch) -> dict[str, float]:
        """Drift on groups that no filter chose and no update trains on."""
        scored = self.accumulator.score(probe)
        tokens = TokenBatch(scored, probe.behavior_logprobs, probe.rewards, probe.response_mask)
        return probe_metrics([tokens])

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
        limit = float("inf") if limit is None else limit
        return sharding.whole(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Our own state, beside what Lightning stores; the weights go into `model/`."""
        sharded = self.ranks.sharded
        checkpoint["state_dict"] = sharding.whole_weights(self.policy.model) if sharded else {}
        checkpoint[STATE] = {
            "applied": self.applied,
            "devices": self.ranks.size,
            "micro_batch_tokens": self.accumulator.token_budget,
            "noise_floor": self.noise_floor,
            "ess_window": self.ess_window.state_dict(),
            "anchors": {name: anchor.state() for name, anchor in self.anchors.items()},
            "decider": self.decider.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Weights, anchors and windows as they were after update `applied`."""
        state = checkpoint[STATE]
        load_weights(self.policy, f"{state['folder']}/model")
        self.applied = state["applied"]
        if (before := state.get("devices", 1)) != self.ranks.size:
            print(f"the run had {before} devices, now {self.ranks.size}: sums round differently")
        reached, given = state["micro_batch_tokens"], self.train_config.micro_batch_tokens
        self.accumulator.token_budget = min(
            reached, given or reached
        )  # it was halved, or is lowered
        self.noise_floor = state["noise_floor"]
        self.ess_window.load_state_dict(state["ess_window"])
        for name, anchor in self.anchors.items():
            if state["anchors"].get(name) is not None:
                anchor.restore(state["anchors"][name])
        self.decider.restore(state.get("decider", {}))
        self.accumulator.objective = self.decider.objective
