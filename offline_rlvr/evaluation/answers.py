"""Who answers the held-out problems: the learner itself, or an engine with its checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from offline_rlvr import generation
from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError
from offline_rlvr.generation import Generator, responses_of
from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.generation.sampling import Sampling
from offline_rlvr.records import Response

#: Samples `len(seeds[i])` responses for the prompt ids `prompts[i]`.
Sample = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], list[list[Response]]]


@contextmanager
def answering(
    config: Config,
    sampling: Sampling,
    learner: Callable[[], PreTrainedModel],
    checkpoint: Path | None,
) -> Iterator[Sample]:
    """The policy, loaded when it is first asked and let go of after the block.

    Args:
        config: The job.
        sampling: Settings of every response.
        learner: The policy in memory; its mode and the global random state stay as they are.
        checkpoint: Where its weights lie, for an engine; None: the untouched base.
    """
    loaded: list[Generator] = []

    def sample(
        prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> list[list[Response]]:
        if not loaded:
            loaded.append(_load(config, sampling, learner, checkpoint))
        return responses_of(loaded[0].submit(prompts, seeds)())

    try:
        yield sample
    finally:
        for generator in loaded:
            generator.close()


def _load(
    config: Config,
    sampling: Sampling,
    learner: Callable[[], PreTrainedModel],
    checkpoint: Path | None,
) -> Generator:
    model = config.model
    if config.evaluation.generation is None:
        tokenizer = load_tokenizer(model.name_or_path, model.revision)
        return HFGenerator(learner(), tokenizer, sampling, **answered_by(config)["settings"])
    torch.cuda.empty_cache()  # what the learner does not use now
    whole = checkpoint is not None and model.lora is None
    return config.build(
        "evaluation.generation",
        generation.load,
        name_or_path=str(checkpoint) if whole else model.name_or_path,
        revision=None if whole else model.revision,
        adapter=None if whole else checkpoint,
        dtype=model.dtype,
        device=model.device,
        sampling=sampling,
    )


def check_engine(config: Config) -> None:
    """Refuse an engine that cannot load a checkpoint.

    Raises:
        ConfigError: It is a server, or its settings cannot be used.
        ResourceError: It is not installed.
    """
    if config.evaluation.generation is None:
        return
    if config.evaluation.generation.name == "server":
        raise ConfigError(
            f"{config.where('evaluation', 'generation', 'name')}: evaluation.generation is a "
            "server, which goes on serving the model that it was started with",
            hint="set evaluation.generation.name to vllm or ray, or leave the section out",
        )
    config.build("evaluation.generation", generation.check)


def engine_of(config: Config) -> str:
    """`transformers float32` or `vllm bfloat16`: what samples the answers, and its precision."""
    by = answered_by(config)
    name = generation.engine_of(by["name"] or "hf", by["settings"])
    return f"{'transformers' if name == 'hf' else name} {by['dtype']}"


def answered_by(config: Config) -> dict[str, Any]:
    """Engine, precision and settings of the answers, as JSON values."""
    engine = config.evaluation.generation
    if engine is not None:
        return {"name": engine.name, "dtype": config.model.dtype, "settings": engine.params}
    batch_size = int(config.generation.params.get("batch_size", 512))
    learner = {"name": None, "dtype": config.model.learner_dtype}
    return {**learner, "settings": {"batch_size": batch_size}}
