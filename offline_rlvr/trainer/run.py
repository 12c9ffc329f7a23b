"""One training on one pool: config to run folder, continued by the same command after any stop."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from offline_rlvr import verifier
from offline_rlvr.config import Config
from offline_rlvr.durable import make_folder
from offline_rlvr.errors import Interrupted
from offline_rlvr.evaluation import (
    best_update,
    evaluation_path,
    read_evaluations,
    write_evaluation,
)
from offline_rlvr.evaluation.answers import answering
from offline_rlvr.evaluation.run import Evaluator
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.lock import WriterLock
from offline_rlvr.policy import eager
from offline_rlvr.policy.load import load_weights, save_policy
from offline_rlvr.progress import Progress
from offline_rlvr.stream import check_ledger
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.boundary import StopRequest, UpdateBoundary, prune
from offline_rlvr.trainer.checkpoints import UpdateCheckpointIO
from offline_rlvr.trainer.decisions import reason, require_measured, stopped_after
from offline_rlvr.trainer.evaluate import trained_model
from offline_rlvr.trainer.fit import fit, make_module
from offline_rlvr.trainer.folder import RunFolder, checkpoints_of, update_of
from offline_rlvr.trainer.launch import launch
from offline_rlvr.trainer.loggers import Curves
from offline_rlvr.trainer.module import OfflineModule
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.record import Recorder
from offline_rlvr.trainer.setup import Setup, set_up
from offline_rlvr.trainer.space import check_space, disk_need


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
        callbacks: Lightning callbacks to add, to the first process where there are several.

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
        newest, applied, ended = _where_it_stopped(config, run, setup, recorder)
        tokenizer = load_tokenizer(config.model.name_or_path, config.model.revision)
        evaluators = _evaluators(config, setup, tokenizer, stack)
        curves = stack.enter_context(Curves.of_config(config, run.path, loggers))
        recorder.curves = curves
        if newest and ended:
            _evaluate_late(config, setup, run, evaluators, curves, newest, applied)
            return run
        stack.enter_context(launch(setup.ranks, config, setup.pool.path, run.path, newest))
        module = make_module(config, setup, run.path, setup.ranks, recorder)
        stop = stack.enter_context(StopRequest().listening())
        boundary = UpdateBoundary(
            folder=run.checkpoints,
            recorder=recorder,
            begun=partial(run.keep_config, config),
            last=setup.last,
            checkpoint_every=config.train.checkpoint_every,
            keep=config.train.keep_checkpoints,
            evaluate_every=config.evaluation.every,
            evaluate=partial(_evaluate, config, setup, run, evaluators, curves, module),
            best=lambda: _best(config, run),
            stop=stop,
            progress=stack.enter_context(Progress("updates", setup.last, "updates")),
        )
        check_space(run.path, disk_need(config, setup, module.policy.trained))
        io = _checkpoint_io(module, tokenizer, recorder)
        fit(config, setup, run.path, module, [boundary, *callbacks], io, curves.loggers, newest)
        if not module.stopped:
            _tell_if_stopped(stop, module.applied, setup.last)
        return run


def _checkpoint_io(
    module: OfflineModule, tokenizer: PreTrainedTokenizerBase, recorder: Recorder
) -> UpdateCheckpointIO:
    return UpdateCheckpointIO(
        lambda folder, weights: save_policy(module.policy, folder, tokenizer, weights),
        recorder.ledger,
    )


def _tell_if_stopped(stop: StopRequest, applied: int, last: int) -> None:
    if applied < last and stop.signal is not None:
        raise Interrupted(
            f"stopped by {stop.signal.name} after update {applied} of {last}; it is saved",
            hint="type the same command again to continue",
        )


def _why_ended(config: Config, setup: Setup, recorder: Recorder, applied: int) -> str | None:
    """Why there is nothing left to train; None when there is."""
    stop = stopped_after(recorder.ledger.rows()[applied - 1], config.train.stop_when)
    if stop is not None:
        return (
            f"stopped by train.stop_when after update {applied} of {setup.last} ({reason(stop)}); "
            "change or remove train.stop_when to go on"
        )
    if applied >= setup.last:
        return f"{applied} updates are applied already, {setup.last} were asked for"
    return None


def _best(config: Config, run: RunFolder) -> tuple[int, float] | None:
    """The update whose checkpoint is kept for its held-out accuracy, and that: of those that are
    still there.
    """
    if not config.train.keep_best:
        return None
    there = {update_of(folder) for folder in checkpoints_of(run.checkpoints)}
    return best_update(e for e in read_evaluations(run.path) if e.update in there)


def _run_folder(config: Config, path: Path, setup: Setup) -> RunFolder:
    """The run's folder, made or continued; what a person should know about the pool is said."""
    for line in setup.warnings:
        print(line, flush=True)
    return RunFolder.create_or_open(
        path, config, setup.pool, setup.selected, setup.plan, setup.sampling
    )


def _where_it_stopped(
    config: Config, run: RunFolder, setup: Setup, recorder: Recorder
) -> tuple[Path | None, int, bool]:
    """The newest whole checkpoint, its update, and whether nothing is left to train; journals are
    cut back to it.
    """
    newest = checkpoints.newest(run.checkpoints, print)
    state = checkpoints.read_state(newest) if newest else {"applied": 0, "ledger": None}
    applied = state["applied"]
    again = recorder.rewind(applied)
    check_ledger(setup.plan, recorder.ledger.rows(), applied, state["ledger"])
    ended = None
    if newest:  # of conditions, train.stop_when alone may have been changed since update 1
        measured = {name for row in recorder.metrics.rows() for name in row}
        require_measured(config.train.stop_when, measured)
        ended = _why_ended(config, setup, recorder, applied)
    if ended:
        print(ended)
    elif again or applied:
        print(f"continuing after update {applied}" + (f"; {again} to do again" if again else ""))
    return newest, applied, ended is not None


def _evaluate(
    config: Config,
    setup: Setup,
    run: RunFolder,
    evaluators: Sequence[Evaluator],
    curves: Curves,
    module: OfflineModule,
    update: int,
) -> None:
    """Evaluate and store every set whose result is not there."""
    paths = {evaluation_path(run.path, e.name, update): e for e in evaluators}
    missing = {path: evaluator for path, evaluator in paths.items() if not path.exists()}
    checkpoint = checkpoints.folder_of(run.checkpoints, update) / "model" if update else None

    def learner() -> PreTrainedModel:
        if module.ranks.sharded:  # the others wait, and this one holds a part of each weight
            return trained_model(config.model, checkpoint)
        return cast(PreTrainedModel, module.policy.model)

    with answering(config, setup.sampling, learner, checkpoint) as sample, eager():
        for path, evaluator in missing.items():
            result = evaluator.evaluate(sample, update)
            write_evaluation(path, result)
            curves.add_evaluation(result)
            mean = result.summary()[f"mean@{result.n}"]["value"]
            print(
                f"evaluated after update {update} on {result.name}: mean@{result.n} {mean:.1%}",
                flush=True,
            )


def _evaluate_late(
    config: Config,
    setup: Setup,
    run: RunFolder,
    evaluators: Sequence[Evaluator],
    curves: Curves,
    newest: Path,
    applied: int,
) -> None:
    """What a run that is trained to its end was stopped before."""
    plain = config.model_copy(
        update={"model": config.model.model_copy(update={"compile": False})}  # it only answers
    )
    module = make_module(plain, setup, run.path, Ranks(), record=lambda result: None)
    run.keep_config(config)
    # It may not have been done.
    prune(run.checkpoints, config.train.keep_checkpoints, _best(config, run), module.anchors)
    _evaluate(config, setup, run, evaluators, curves, module, 0)
    load_weights(module.policy, newest / "model")
    _evaluate(config, setup, run, evaluators, curves, module, applied)


def _evaluators(
    config: Config, setup: Setup, tokenizer: PreTrainedTokenizerBase, stack: ExitStack
) -> list[Evaluator]:
    if config.evaluation.problems is None:
        return []
    # Its worker processes start before torch uses threads or a device.
    judge = stack.enter_context(config.build("verifier", verifier.load))
    base = setup.pool.identity["model"]["fingerprint"]
    return Evaluator.from_config(config, tokenizer, setup.sampling, judge, base)
