"""One training on one pool: config to run folder, continued by the same command after any stop."""

import logging
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from offline_rlvr import objectives, verifier
from offline_rlvr import problems as problem_sources
from offline_rlvr.config import Config
from offline_rlvr.durable import make_folder
from offline_rlvr.errors import IncompatibleError, Interrupted
from offline_rlvr.evaluation import evaluation_path, write_evaluation
from offline_rlvr.evaluation.run import Evaluator
from offline_rlvr.generation.pretrained import fingerprint, load_tokenizer, resolve_device
from offline_rlvr.generation.sampling import LOGPROB_MODE, RESCORED, Sampling
from offline_rlvr.lock import WriterLock
from offline_rlvr.objectives.interface import Objective
from offline_rlvr.policy import Policy
from offline_rlvr.policy.load import load_policy, load_weights, save_policy
from offline_rlvr.pool import Pool
from offline_rlvr.pool.build import sampling_of
from offline_rlvr.pool.selection import Filters, Selected, select
from offline_rlvr.progress import Progress
from offline_rlvr.stream import Plan, check_ledger, make_plan
from offline_rlvr.stream.data import PoolData, UpdateData, collate
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.anchors import Anchor
from offline_rlvr.trainer.boundary import StopRequest, UpdateBoundary
from offline_rlvr.trainer.checkpoints import UpdateCheckpointIO
from offline_rlvr.trainer.folder import RunFolder
from offline_rlvr.trainer.initial_scores import InitialScores, cache_folder, scoring_facts
from offline_rlvr.trainer.loggers import check_logger, load_loggers
from offline_rlvr.trainer.module import OfflineModule
from offline_rlvr.trainer.record import Recorder
from offline_rlvr.trainer.space import check_space, checkpoint_bytes, disk_need

#: Sampling settings of a pool that no config can ask for, and that are trained on with a warning.
KNOWINGLY = {("logprobs", RESCORED)}


@dataclass(frozen=True)
class Setup:
    """Everything that is decided before a model is loaded."""

    pool: Pool
    plan: Plan
    last: int
    selected: Selected
    objective: Objective
    sampling: Sampling

    @property
    def warnings(self) -> list[str]:
        """What a person should know about the pool before training on it."""
        if self.pool.identity["sampling"].get("logprobs", LOGPROB_MODE) == LOGPROB_MODE:
            return []
        return [
            "warning: the pool's log-probs were scored after the fact by the model that is said to "
            "have sampled it; drift from the true behavior policy cannot be told from that"
        ]


def set_up(config: Config, pool_path: Path) -> Setup:
    """Open the pool, check that it belongs to this config, and make the plan.

    Raises:
        IncompatibleError: Another model, tokenizer, template or prompt than the pool was built
            with.
        ConfigError: An objective or setting that cannot be used.
    """
    objective = config.build("objective", objectives.load)
    config.build("verifier", verifier.load)
    if config.evaluation.problems is not None:
        config.build("evaluation.problems", problem_sources.load)
    check_logger(config)
    resolve_device(config.model.device)
    pool = Pool.open(pool_path)
    sampling = sampling_of(config)
    _check_identity(config, pool, sampling)
    filters = Filters(**config.selection.model_dump())
    selected = select(pool, config.pool.probe_groups, filters)
    plan = make_plan(
        selected.training_ids.tolist(),
        pool_hash=pool.hash,
        seed=config.train.seed,
        groups_per_update=config.train.groups_per_update,
        drop_last=config.train.drop_last,
    )
    last = min(plan.updates, config.train.max_updates or plan.updates)
    return Setup(pool, plan, last, selected, objective, sampling)


def train(
    config: Config, pool_path: Path, run_path: Path, loggers: list[Logger] | None = None
) -> RunFolder:
    """Train, or continue, the run at `run_path`.

    Args:
        config: The job.
        pool_path: The pool's folder.
        run_path: The run's folder.
        loggers: Lightning loggers to use instead of the config's `logger`.

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
        evaluator = _evaluator(config, setup, tokenizer, stack)
        module = _module(config, setup, run, recorder)
        stop = stack.enter_context(StopRequest().listening())
        boundary = UpdateBoundary(
            folder=run.checkpoints,
            recorder=recorder,
            last=setup.last,
            checkpoint_every=config.train.checkpoint_every,
            keep=config.train.keep_checkpoints,
            evaluate_every=config.evaluation.every,
            evaluate=lambda update: _evaluate(run, evaluator, module.policy, update),
            stop=stop,
            progress=stack.enter_context(Progress("updates", setup.last, "updates")),
        )
        io = UpdateCheckpointIO(
            lambda folder: save_policy(module.policy, folder, tokenizer), recorder.ledger
        )
        trainer = _lightning(config, run, module.policy, boundary, io, loggers)
        if newest and applied >= setup.last:
            print(f"{applied} updates are applied already, {setup.last} were asked for")
            boundary.prune(module)  # the last attempt may have ended before it did
            _evaluate(run, evaluator, module.policy, 0)
            load_weights(module.policy, newest / "model")
            _evaluate(run, evaluator, module.policy, applied)
        else:
            sizes = checkpoint_bytes(module.policy)
            check_space(
                run.path,
                disk_need(config, setup.objective, setup.pool, setup.plan, setup.last, sizes),
            )
            stream = PoolData(setup.pool, setup.plan, applied, setup.last)
            trainer.fit(module, datamodule=stream, ckpt_path=newest)
            if module.applied < setup.last and stop.signal is not None:
                raise Interrupted(
                    f"stopped by {stop.signal.name} after update {module.applied} of {setup.last}; "
                    "it is saved",
                    hint="type the same command again to continue",
                )
        return run


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
    state = checkpoints.read_state(newest) if newest else {"applied": 0, "ledger": None}
    applied = state["applied"]
    again = recorder.rewind(applied)
    check_ledger(setup.plan, recorder.ledger.rows(), applied, state["ledger"])
    if again or 0 < applied < setup.last:
        print(f"continuing after update {applied}" + (f"; {again} to do again" if again else ""))
    return newest, applied


def _evaluate(run: RunFolder, evaluator: Evaluator | None, policy: Policy, update: int) -> None:
    """Evaluate and store, unless there is nothing to evaluate on or the result is there."""
    if evaluator is None:
        return
    path = evaluation_path(run.path, evaluator.name, update)
    if not path.exists():
        result = evaluator.evaluate(cast(PreTrainedModel, policy.model), update)
        write_evaluation(path, result)
        mean = result.summary()[f"mean@{result.n}"]["value"]
        print(f"evaluated after update {update}: mean@{result.n} {mean:.1%}", flush=True)


def _module(config: Config, setup: Setup, run: RunFolder, recorder: Recorder) -> OfflineModule:
    windows = {"reference": config.reference.refresh_every, "old": config.old.refresh_every}
    initial = InitialScores(
        scoring_facts(config, setup.pool, setup.plan, setup.sampling), cache_folder()
    )
    anchors = {
        name: Anchor(name, windows[name], setup.last, run.path / "anchors", initial)
        for name in sorted(setup.objective.anchors)
    }
    data = UpdateData(setup.pool, setup.plan)
    probe_ids = setup.selected.probe_ids
    probe = collate(setup.pool.read(probe_ids)) if len(probe_ids) else None
    policy = _policy(config, setup)
    return OfflineModule(policy, setup.objective, config.train, data, anchors, probe, recorder)


def _check_identity(config: Config, pool: Pool, sampling: Sampling) -> None:
    """Refuse a pool that another model, template, prompt or sampling has built."""
    model, built = config.model, pool.identity["model"]
    mine = fingerprint(model.name_or_path, model.revision)
    theirs = built["fingerprint"]
    wrong = [part for part in theirs if theirs[part] != mine.get(part)]
    if pool.identity["prompt"] != config.prompt.model_dump():
        wrong.append("prompt settings")
    built_with = pool.identity["sampling"]
    wrong += [
        f"sampling.{key} ({built_with.get(key)} in the pool, {value} here)"
        for key, value in sampling.as_dict().items()
        if built_with.get(key) != value and (key, built_with.get(key)) not in KNOWINGLY
    ]
    if pool.group_size != config.pool.group_size:
        wrong.append(f"pool.group_size ({pool.group_size} in the pool)")
    if wrong:
        raise IncompatibleError(
            f"the pool was built by {built['name_or_path']!r}, and this config's "
            f"{model.name_or_path!r} differs in: {', '.join(wrong)}",
            hint="train the policy that built the pool, with the prompt it was built with",
        )


def _evaluator(
    config: Config, setup: Setup, tokenizer: PreTrainedTokenizerBase, stack: ExitStack
) -> Evaluator | None:
    if config.evaluation.problems is None:
        return None
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
        dtype=model.dtype,
        device=model.device,
        lora=model.lora.model_dump() if model.lora else None,
        temperature=setup.sampling.temperature,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def _lightning(
    config: Config,
    run: RunFolder,
    policy: Policy,
    boundary: UpdateBoundary,
    io: UpdateCheckpointIO,
    loggers: list[Logger] | None,
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
        callbacks=[boundary],
        plugins=[io],
        logger=load_loggers(config, run.path) if loggers is None else loggers,
        default_root_dir=run.path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
