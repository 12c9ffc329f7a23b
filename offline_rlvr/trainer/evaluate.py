"""Evaluate a run after the fact: its checkpoints and its base, with the run's own settings."""

from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from offline_rlvr import verifier
from offline_rlvr.config import Config, load_config
from offline_rlvr.config.schema import Model
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.evaluation import evaluation_path, write_evaluation
from offline_rlvr.evaluation.answers import answering
from offline_rlvr.evaluation.run import Evaluator
from offline_rlvr.generation import Sampling
from offline_rlvr.generation.pretrained import load_model, load_tokenizer
from offline_rlvr.lock import WriterLock
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.decisions import best_kept
from offline_rlvr.trainer.folder import RunFolder, checkpoints_of, update_of


def evaluate_run(path: Path, *, force: bool = False) -> list[Path]:
    """Evaluate what the run has no results of on the held-out problems.

    That is the base, the newest checkpoint, and of the others that are there and whole those that
    `evaluation.every` asks for and the best one.

    Args:
        path: The run's folder.
        force: Evaluate again what is stored.

    Returns:
        The evaluation files, in order of their updates.

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
    tokenizer = load_tokenizer(config.model.name_or_path, config.model.revision)
    sampling = Sampling(**run.facts["sampling"])
    files = []
    with config.build("verifier", verifier.load) as judge:
        evaluators = Evaluator.from_config(config, tokenizer, sampling, judge)
        for update, folder in _evaluated(run, config, newest).items():
            paths = {evaluation_path(path, e.name, update): e for e in evaluators}
            wanted = {file: e for file, e in paths.items() if force or not file.exists()}
            if wanted and folder is not None and folder != newest and not _whole(folder):
                continue
            checkpoint = folder and folder / "model"
            learner = partial(trained_model, config.model, checkpoint)
            with answering(config, sampling, learner, checkpoint) as sample:
                for file, evaluator in wanted.items():
                    write_evaluation(file, evaluator.evaluate(sample, update))
            files += paths
    return files


def _evaluated(run: RunFolder, config: Config, newest: Path) -> dict[int, Path | None]:
    """The updates that are evaluated, and their checkpoints; the base has none."""
    every = config.evaluation.every
    best = best_kept(read_rows(run.path / "ledger.jsonl"))
    found: dict[int, Path | None] = {0: None}
    for folder in checkpoints_of(run.checkpoints):
        update = update_of(folder)
        if folder == newest or update == best or (every and update % every == 0):
            found[update] = folder
    return found


def _whole(checkpoint: Path) -> bool:
    """Whether there is something to evaluate; a person is told where there is not."""
    try:
        checkpoints.verify(checkpoint)
    except DataError as error:
        print(f"not evaluated: {error.message}", flush=True)
        return False
    return True


def trained_model(model: Model, folder: Path | None) -> PreTrainedModel:
    """The policy of a checkpoint's `model` folder; None: the base."""
    if folder is None or model.lora is not None:
        return load_model(
            model.name_or_path, model.revision, model.learner_dtype, model.device, adapter=folder
        )
    return load_model(folder, None, model.learner_dtype, model.device)
