"""Evaluate a run after the fact: newest checkpoint and base, with the run's own settings."""

from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from offline_rlvr import verifier
from offline_rlvr.config import load_config
from offline_rlvr.config.schema import Model
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.evaluation import evaluation_path, write_evaluation
from offline_rlvr.evaluation.answers import answering
from offline_rlvr.evaluation.run import Evaluator
from offline_rlvr.generation import Sampling
from offline_rlvr.generation.pretrained import load_model, load_tokenizer
from offline_rlvr.lock import WriterLock
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.folder import RunFolder


def evaluate_run(path: Path, *, force: bool = False) -> list[Path]:
    """Evaluate the base and the newest checkpoint on the held-out problems.

    Args:
        path: The run's folder.
        force: Evaluate again what is stored.

    Returns:
        The evaluation files, before and after.

    Raises:
        DataError: No checkpoint yet.
        ConfigError: The run's config names no held-out problems.
        BusyError: The run is being trained.
    """
    run = RunFolder.open(path)
    lock = WriterLock(path)  # a training of this run must not lose its unfinished checkpoint to us
    try:
        return _evaluate_locked(run, force=force)
    finally:
        lock.release()


def _evaluate_locked(run: RunFolder, *, force: bool) -> list[Path]:
    path = run.path
    config = load_config(path / "config.yaml")
    if config.evaluation.problems is None:
        raise ConfigError(
            f"{path / 'config.yaml'} names no held-out problems",
            hint="set evaluation.problems and start a new run",
        )
    newest = checkpoints.newest(run.checkpoints, print)
    if newest is None:
        raise DataError(
            f"{path} has no checkpoint yet", hint="train until the first one is written"
        )
    applied = checkpoints.read_state(newest)["applied"]
    tokenizer = load_tokenizer(config.model.name_or_path, config.model.revision)
    sampling = Sampling(**run.facts["sampling"])
    files = []
    with config.build("verifier", verifier.load) as judge:
        evaluators = Evaluator.from_config(config, tokenizer, sampling, judge)
        for update in sorted({0, applied}):
            paths = {evaluation_path(path, e.name, update): e for e in evaluators}
            wanted = {file: e for file, e in paths.items() if force or not file.exists()}
            checkpoint = newest / "model" if update else None
            learner = partial(trained_model, config.model, checkpoint)
            with answering(config, sampling, learner, checkpoint) as sample:
                for file, evaluator in wanted.items():
                    write_evaluation(file, evaluator.evaluate(sample, update))
            files += paths
    return files


def trained_model(model: Model, folder: Path | None) -> PreTrainedModel:
    """The policy of a checkpoint's `model` folder; None: the base."""
    if folder is None or model.lora is not None:
        return load_model(
            model.name_or_path, model.revision, model.learner_dtype, model.device, adapter=folder
        )
    return load_model(folder, None, model.learner_dtype, model.device)
