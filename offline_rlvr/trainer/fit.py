"""What every process of a training does: the module with its policy, and Lightning's loop."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger

from offline_rlvr.config import Config
from offline_rlvr.policy import Policy
from offline_rlvr.policy.load import load_policy
from offline_rlvr.stream.data import PoolData, UpdateData, collate
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.accumulate import Accumulator
from offline_rlvr.trainer.anchors import Anchor
from offline_rlvr.trainer.checkpoints import UpdateCheckpointIO
from offline_rlvr.trainer.decisions import Decider, schedules_of
from offline_rlvr.trainer.initial_scores import InitialScores, scoring_facts
from offline_rlvr.trainer.memory import ModelShape, choose_pack_tokens, choose_token_budget
from offline_rlvr.trainer.module import OfflineModule
from offline_rlvr.trainer.phases import Phases
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.record import UpdateResult
from offline_rlvr.trainer.setup import Setup
from offline_rlvr.trainer.strategy import RankEnvironment, RankStrategy


def make_module(
    config: Config, setup: Setup, run: Path, ranks: Ranks, record: Callable[[UpdateResult], None]
) -> OfflineModule:
    """The learner of this process, with its anchors.

    Args:
        config: The job.
        setup: What was decided before.
        run: The run's folder.
        ranks: The processes, met.
        record: Receives each applied update.
    """
    policy = _policy(config, setup, ranks)
    shape = ModelShape.of(policy.model, policy.causal_lm.config)
    fixed = config.train.micro_batch_tokens
    budget = fixed or min(ranks.together(lambda: _choose_budget(policy, shape, ranks)))
    pack = fixed or choose_pack_tokens(shape, policy.device)
    phases = Phases(policy.device)
    accumulator = Accumulator(policy, setup.objective, budget, phases, ranks, pack)
    decider = Decider(
        config.train.stop_when, schedules_of(config, setup.objective), setup.objective
    )
    facts = scoring_facts(config, setup.pool, setup.plan, setup.sampling, (budget, pack), ranks)
    initial = InitialScores(facts, ranks=ranks)
    anchors = {
        name: Anchor(name, schedule, setup.last, run / "anchors", initial, ranks)
        for name, schedule in decider.schedules.items()
    }
    data = UpdateData(setup.pool, setup.plan)
    probe_ids = setup.selected.probe_ids
    probe = collate(setup.pool.read(probe_ids)) if len(probe_ids) else None
    return OfflineModule(accumulator, config.train, data, anchors, decider, probe, record)


def fit(
    config: Config,
    setup: Setup,
    run: Path,
    module: OfflineModule,
    callbacks: list[pl.Callback],
    io: UpdateCheckpointIO,
    loggers: list[Logger],
    newest: Path | None,
) -> None:
    """Train the updates that the checkpoint `newest` (None: the untouched policy) does not hold."""
    applied = checkpoints.read_state(newest)["applied"] if newest else 0
    trainer = _lightning(config, run, module, callbacks, io, loggers)
    stream = PoolData(setup.pool, setup.plan, applied, setup.last)
    trainer.fit(module, datamodule=stream, ckpt_path=newest)


def _choose_budget(policy: Policy, shape: ModelShape, ranks: Ranks) -> int:
    sharing = ranks.size if policy.device.type == "cpu" else 1
    return choose_token_budget(shape, policy.device, policy.checkpointing, sharing=sharing)


def _policy(config: Config, setup: Setup, ranks: Ranks) -> Policy:
    model = config.model
    # The one random draw of a training: a fresh adapter. Updates draw nothing, so no checkpoint
    # has to hold a random state.
    torch.manual_seed(config.train.seed)
    return load_policy(
        model.name_or_path,
        revision=model.revision,
        dtype=model.learner_dtype,
        device=str(ranks.device(model.device)),
        lora=model.lora.model_dump() if model.lora else None,
        temperature=setup.sampling.temperature,
        gradient_checkpointing=model.gradient_checkpointing,
        compile=model.compile,
    )


def _lightning(
    config: Config,
    run: Path,
    module: OfflineModule,
    callbacks: list[pl.Callback],
    io: UpdateCheckpointIO,
    loggers: list[Logger],
) -> pl.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Reading is far faster than training, and workers would prefetch past the cursor.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # Lightning 2.6 with torch 2.13; nothing a user could do.
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    # FSDP2; nothing here changes log-probs in place.
    warnings.filterwarnings("ignore", message=".*returned a view tensor.*")
    device, ranks = module.policy.device, module.ranks
    several = ranks.size > 1
    gpus = list(range(ranks.size)) if several else [device.index or 0]
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=gpus if device.type == "cuda" else ranks.size,
        strategy=RankStrategy(ranks) if several else "auto",
        precision=config.train.precision,
        max_epochs=1,
        callbacks=callbacks,
        plugins=[io, RankEnvironment(ranks)] if several else [io],
        logger=loggers,
        default_root_dir=run,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
