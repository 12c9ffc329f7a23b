"""Build a pool: draw problems, sample K responses each, verify, commit; continue when typed again.

Draw order, sampling seeds and the cut into commits are pure functions of the config, so an
interrupted build that is typed again ends in the same pool as an uninterrupted one.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from offline_rlvr import generation, verifier
from offline_rlvr import problems as problem_sources
from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError, IncompatibleError, QualityGateError
from offline_rlvr.generation import Generator, Sampling, seed_for
from offline_rlvr.generation.pretrained import fingerprint, folder_of, load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat, stop_token_ids
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.selection import mixed
from offline_rlvr.pool.writer import PoolWriter
from offline_rlvr.progress import Progress
from offline_rlvr.records import Group, Problem
from offline_rlvr.verifier import Verifier

#: Libraries whose version may change a log-prob or a verdict.
RECORDED_VERSIONS = (
    "offline-rlvr",
    "torch",
    "transformers",
    "tokenizers",
    "math-verify",
    "pyarrow",
)


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


def build_pool(config: Config, path: Path) -> Pool:
    """Make or continue the pool at `path` until enough mixed groups are stored.

    Raises:
        ConfigError: The config cannot be used; nothing was started.
        IncompatibleError: `path` holds a pool of another identity.
        QualityGateError: The budget is used up, or too many responses could not be scored; all is
            kept.
    """
    sampling = sampling_of(config)
    with config.build("verifier", verifier.load) as judge:
        draws = draw(config, judge)
        identity = identity_of(config, sampling, draws)
        with PoolWriter.create_or_open(path, identity) as writer:
            _fill(config, writer, draws, sampling, judge)
            writer.finish()
    return Pool.open(path, check="size")


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
    """Load, de-duplicate, check and shuffle the problems."""
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


def identity_of(config: Config, sampling: Sampling, draws: Draws) -> dict[str, Any]:
    """What makes this pool this pool; two builds with equal identities belong together."""
    model = config.model
    questions = json.dumps(
        [[problem.id, problem.question, problem.answer] for problem in draws.problems]
    )
    return {
        "model": {
            "name_or_path": model.name_or_path,
            "revision": model.revision,
            "dtype": model.dtype,
            "fingerprint": fingerprint(model.name_or_path, model.revision),
        },
        "prompt": config.prompt.model_dump(),
        "sampling": sampling.as_dict(),
        "generation": config.generation.name,
        "group_size": config.pool.group_size,
        "vocab_size": _vocab_size(config),
        "problems": {
            "source": config.problems.model_dump(),
            "count": len(draws.problems),
            "sha256": hashlib.sha256(questions.encode()).hexdigest(),
        },
        "seed": config.pool.seed,
        "versions": {name: version(name) for name in RECORDED_VERSIONS},
    }


def _vocab_size(config: Config) -> int:
    folder = folder_of(config.model.name_or_path, config.model.revision)
    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = facts.get("vocab_size") or facts.get("text_config", {}).get("vocab_size")
    if not isinstance(size, int):
        raise IncompatibleError(f"{folder / 'config.json'} names no vocab_size")
    return size


def _fill(
    config: Config, writer: PoolWriter, draws: Draws, sampling: Sampling, judge: Verifier
) -> None:
    wanted, started = config.pool.mixed_groups, time.monotonic()
    limit = min(config.pool.max_sampled_groups or len(draws.problems), len(draws.problems))
    tally = _Tally(config, writer, judge.id)
    generator: Generator | None = None
    drops = draws.dropped if writer.commit == 0 else {}
    with Progress("mixed groups", wanted, "groups") as progress:
        while tally.mixed < wanted:
            progress.update(max(tally.mixed, 0), f"{tally.sampled} sampled")
            first = writer.next_group_id
            spent = (time.monotonic() - started) / 3600
            if first >= limit or (
                config.pool.max_hours is not None and spent > config.pool.max_hours
            ):
                raise tally.budget_used_up(len(draws.problems))
            generator = generator or _generator(config, sampling)
            rows = range(first, min(first + config.pool.chunk_groups, limit))
            groups = _sample(config, rows, draws, generator, judge)
            writer.append(groups, judge.id, drops)
            drops = {}
            tally.add(groups)
            tally.check()
        progress.update(max(tally.mixed, 0), f"{tally.sampled} sampled")


def _generator(config: Config, sampling: Sampling) -> Generator:
    model = config.model
    return config.build(
        "generation",
        generation.load,
        name_or_path=model.name_or_path,
        revision=model.revision,
        dtype=model.dtype,
        device=model.device,
        sampling=sampling,
    )


def _sample(
    config: Config, rows: range, draws: Draws, generator: Generator, judge: Verifier
) -> list[Group]:
    k = config.pool.group_size
    seeds = [[seed_for(config.pool.seed, row, index) for index in range(k)] for row in rows]
    sampled = generator.submit([draws.prompts[row] for row in rows], seeds)()
    pairs = [
        (draws.problems[row].answer, response.text)
        for row, responses in zip(rows, sampled, strict=True)
        for response in responses
    ]
    verdicts = judge.score(pairs)
    return [
        Group(
            row,
            draws.problems[row],
            tuple(draws.prompts[row]),
            tuple(responses),
            tuple(verdicts[slot * k : (slot + 1) * k]),
        )
        for slot, (row, responses) in enumerate(zip(rows, sampled, strict=True))
    ]


class _Tally:
    """Counts towards the goal and the unscored gate, the groups of earlier attempts included.

    The probe slice takes at most `probe_groups` mixed groups away from training, so that many are
    sampled on top.
    """

    def __init__(self, config: Config, writer: PoolWriter, verifier_id: str):
        self.config = config
        self.sampled = self.unscored = self.responses = 0
        self.mixed = -config.pool.probe_groups
        if writer.commit:
            pool = Pool.open(writer.path, check="size")
            # After a grading by another verifier: this one's grades count again once it goes on.
            if verifier_id in pool.verifier_ids:
                pool = Pool.open(writer.path, verifier_id, check="size")
            rewards = pool.index.rewards
            self.sampled = len(rewards)
            self.mixed += len(mixed(pool))
            self.unscored, self.responses = int(np.isnan(rewards).sum()), rewards.size

    def add(self, groups: Sequence[Group]) -> None:
        """Count newly committed groups."""
        for group in groups:
            rewards = [verdict.reward for verdict in group.verdicts]
            missing = rewards.count(None)
            self.mixed += not missing and len(set(rewards)) > 1
            self.unscored += missing
        self.sampled += len(groups)
        self.responses += sum(len(group.verdicts) for group in groups)

    def check(self) -> None:
        """Stop a build whose verifier cannot score what the policy writes."""
        share = self.unscored / self.responses
        if share > self.config.pool.max_unscored:
            raise QualityGateError(
                f"{self.unscored} of {self.responses} responses ({share:.1%}) could not be scored; "
                f"at most {self.config.pool.max_unscored:.1%} is allowed (pool.max_unscored)",
                hint="`offline-rlvr pool stats` shows the reasons; everything sampled is kept",
            )

    def budget_used_up(self, available: int) -> QualityGateError:
        """The error when problems, groups or hours ran out before the goal."""
        goal = self.config.pool.mixed_groups
        return QualityGateError(
            f"{max(self.mixed, 0)} of {goal} mixed groups after sampling {self.sampled} groups "
            f"(of {available} problems); the budget is used up",
            hint="raise pool.max_sampled_groups or pool.max_hours, or lower pool.mixed_groups, "
            "then type the same command again; everything sampled is kept",
        )
