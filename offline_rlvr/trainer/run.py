"""One training on one pool: config to run folder, continued by the same command after any stop."""

import logging
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from offline_rlvr import verifier
from offline_rlvr.config import Config
from offline_rlvr.durable import make_folder
from offline_rlvr.errors import Interrupted
from offline_rlvr.evaluation import evaluation_path, write_evaluation
from offline_rlvr.evaluation.run import Evaluator
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.lock import WriterLock
from offline_rlvr.policy import Policy
from offline_rlvr.policy.load import load_policy, load_weights, save_policy
from offline_rlvr.progress import Progress
from offline_rlvr.stream import check_ledger
from offline_rlvr.stream.data import PoolData, UpdateData, collate
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.accumulate import Accumulator
from offline_rlvr.trainer.anchors import Anchor
from offline_rlvr.trainer.boundary import StopRequest, UpdateBoundary
from offline_rlvr.trainer.checkpoints import UpdateCheckpointIO
from offline_rlvr.trainer.folder import RunFolder
from offline_rlvr.trainer.initial_scores import InitialScores, cache_folder, scoring_facts
from offline_rlvr.trainer.loggers import Curves
from offline_rlvr.trainer.memory import ModelShape, choose_token_budget
from offline_rlvr.trainer.module import OfflineModule
from offline_rlvr.trainer.phases import Phases
from offline_rlvr.trainer.record import Recorder
from offline_rlvr.trainer.setup import Setup, set_up


def train(
    config: Config,
    pool_path: Path,
    run_path: Path,
    loggers: list[Logger] | None = None,
    callbacks: Sequence[pl.Callback] = (),
) -> RunFolder:
    """Train, or continue, the run at `run_path`.

    Args:
        config: The job.
        pool_path: The pool's folder.
        run_path: The run's folder.
        loggers: Lightning loggers to use instead of the config's `logger`.
        callbacks: Lightning callbacks to add.

    Returns:
        The finished run's folder.

    Raises:
        Interrupted: SIGTERM or Ctrl-C; the finished updates are in a checkpoint.
        OfflineRlvrError: See `errors`; a run that cannot start leaves nothing trained.
    """
    setup = set_up(config, pool_path)
    with ExitStack() as stack:
        make_folder(run_path)
        stack.callback(WriterLock(run_path).release)
        run = _run_folder(config, run_path, setup)
        recorder = Recorder(run.path, run.next_attempt())
        newest, applied = _where_it_stopped(run, setup, recorder)
        tokenizer = load_tokenizer(config.model.name_or_path, config.model.revision)
        evaluators = _evaluators(config, setup, tokenizer, stack)
        module = _module(config, setup, run, recorder)
        curves = stack.enter_context(Curves.of_config(config, run.path, loggers))
        recorder.curves = curves
        stop = stack.enter_context(StopRequest().listening())
        boundary = UpdateBoundary(
            folder=run.checkpoints,
            recorder=recorder,
            last=setup.last,
            checkpoint_every=config.train.checkpoint_every,
            keep=config.train.keep_checkpoints,
            evaluate_every=config.evaluation.every,
            evaluate=lambda update: _evaluate(run, evaluators, module.policy, update, curves),
            stop=stop,
            progress=stack.enter_context(Progress("updates", setup.last, "updates")),
        )
        io = UpdateCheckpointIO(lambda folder: save_policy(module.policy, folder, tokenizer))
        trainer = _lightning(config, run, module.policy, [boundary, *callbacks], io, curves)
        if newest and applied >= setup.last:
            print(f"{applied} updates are applied already, {setup.last} were asked for")
            _evaluate(run, evaluators, module.policy, 0, curves)
            load_weights(module.policy, newest / "model")
            _evaluate(run, evaluators, module.policy, applied, curves)
        else:
            stream = PoolData(setup.pool, setup.plan, applied, setup.last)
            trainer.fit(module, datamodule=stream, ckpt_path=newest)
            _tell_if_stopped(stop, module.applied, setup.last)
        return run


def _tell_if_stopped(stop: StopRequest, applied: int, last: int) -> None:
    if applied < last and stop.signal is not None:
        raise Interrupted(
            f"stopped by {stop.signal.name} after update {applied} of {last}; it is saved",
            hint="type the same command again to continue",
        )


def _run_folder(config: Config, path: Path, setup: Setup) -> RunFolder:
    """The run's folder, made or continued; what a person should know about the pool is said."""
    for line in setup.warnings:
        print(line, flush=True)
    return RunFolder.create_or_open(
        path, config, setup.pool, setup.selected, setup.plan, setup.sampling
    )


def _where_it_stopped(run: RunFolder, setup: Setup, recorder: Recorder) -> tuple[Path | None, int]:
    """The newest whole checkpoint and its update; journals are cut back to it."""
    newest = checkpoints.newest(run.checkpoints, print)
    applied = checkpoints.read_state(newest)["applied"] if newest else 0
    again = recorder.rewind(applied)
    check_ledger(setup.plan, recorder.ledger.rows(), applied)
    if again or 0 < applied < setup.last:
        print(f"continuing after update {applied}" + (f"; {again} to do again" if again else ""))
    return newest, applied


def _evaluate(
    run: RunFolder,
    evaluators: Sequence[Evaluator],
    policy: Policy,
    update: int,
    curves: Curves,
) -> None:
    """Evaluate and store every set whose result is not there."""
    for evaluator in evaluators:
        path = evaluation_path(run.path, evaluator.name, update)
        if path.exists():
            continue
        result = evaluator.evaluate(cast(PreTrainedModel, policy.model), update)
        write_evaluation(path, result)
        curves.add_evaluation(result)
        mean = result.summary()[f"mean@{result.n}"]["value"]
        print(
            f"evaluated after update {update} on {result.name}: mean@{result.n} {mean:.1%}",
            flush=True,
        )


def _module(config: Config, setup: Setup, run: RunFolder, recorder: Recorder) -> OfflineModule:
    policy = _policy(config, setup)
    budget = config.train.micro_batch_tokens or choose_token_budget(
        ModelShape.of(policy.model, policy.causal_lm.config), policy.device, policy.checkpointing
    )
    accumulator = Accumulator(policy, setup.objective, budget, Phases(policy.device))
    windows = {"reference": config.reference.refresh_every, "old": config.old.refresh_every}
    facts = scoring_facts(config, setup.pool, setup.plan, setup.sampling, budget)
    initial = InitialScores(facts, cache_folder())
    anchors = {
        name: Anchor(name, windows[name], setup.last, run.path / "anchors", initial)
        for name in sorted(setup.objective.anchors)
    }
    data = UpdateData(setup.pool, setup.plan)
    probe_ids = setup.selected.probe_ids
    probe = collate(setup.pool.read(probe_ids)) if len(probe_ids) else None
    return OfflineModule(accumulator, config.train, data, anchors, probe, recorder)


def _evaluators(
    config: Config, setup: Setup, tokenizer: PreTrainedTokenizerBase, stack: ExitStack
) -> list[Evaluator]:
    if config.evaluation.problems is None:
        return []
    # Its worker processes start before torch uses threads or a device.
    judge = stack.enter_context(config.build("verifier", verifier.load))
    return Evaluator.from_config(config, tokenizer, setup.sampling, judge)


def _policy(config: Config, setup: Setup) -> Policy:
    model = config.model
    # The one random draw of a training: a fresh adapter. Updates draw nothing, so no checkpoint
    # has to hold a random state.
    torch.manual_seed(config.train.seed)
    return load_policy(
        model.name_or_path,
        revision=model.revision,
        dtype=model.learner_dtype,
        device=model.device,
        lora=model.lora.model_dump() if model.lora else None,
        temperature=setup.sampling.temperature,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def _lightning(
    config: Config,
    run: RunFolder,
    policy: Policy,
    callbacks: list[pl.Callback],
    io: UpdateCheckpointIO,
    curves: Curves,
) -> pl.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Reading is far faster than training, and workers would prefetch past the cursor.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # Lightning 2.6 with torch 2.13; nothing a user could do.
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
    device = next(policy.parameters()).device
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision=config.train.precision,
        max_epochs=1,
        callbacks=callbacks,
        plugins=[io],
        logger=curves.loggers,
        default_root_dir=run.path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
