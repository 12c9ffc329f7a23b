"""Make a pool from a file of somebody else's responses.

The config says which model wrote them, with which prompt and sampling settings. Where the file has
no log-probs, that model scores the responses now, and the pool's identity says `rescored`.
`pool.dump_groups` tells what else is made of what the file does not say.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from offline_rlvr import verifier
from offline_rlvr.config import Config
from offline_rlvr.durable import file_sha256
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat
from offline_rlvr.generation.sampling import RESCORED, Sampling
from offline_rlvr.policy import Policy, load_policy
from offline_rlvr.pool import GroupArrays, Pool, PoolWriter
from offline_rlvr.pool.build import identity_of, sampling_of
from offline_rlvr.pool.build.draw import Draws
from offline_rlvr.pool.dump import open_dump
from offline_rlvr.pool.dump_groups import Draft, DumpGroups
from offline_rlvr.pool.dump_rows import Columns, resolve
from offline_rlvr.progress import Progress
from offline_rlvr.records import Group, Verdict
from offline_rlvr.trainer.rescore import rescore
from offline_rlvr.verifier import Verifier

#: Verifier id of rewards that were in the file.
GIVEN = "imported"


def import_pool(
    config: Config,
    file: Path,
    path: Path,
    layout: str = "responses",
    columns: Mapping[str, str] | None = None,
    rewards: str = "verify",
) -> Pool:
    """Make the pool at `path` from `file`, or continue; typed again after the end it does nothing.

    Args:
        config: Model, prompt, sampling, verifier and `pool.group_size` (K) of the responses.
        file: JSONL or Parquet, one row per response.
        path: The pool's folder.
        layout: `responses`, `trl` or `verl`: the names of the columns.
        columns: Columns with other names, by their role (a field of `Columns`).
        rewards: `verify` scores every response with the config's verifier; `given` keeps those of
            the file, correct where above 0.

    Raises:
        ConfigError: Columns that are not there, or settings that do not go together.
        DataError: A row that cannot be what the config says, with file and row; the groups before
            it are kept. Or no group has K responses.
        IncompatibleError: `path` holds another pool, or the prompts have another format.
    """
    if rewards not in ("verify", "given"):
        raise ConfigError(f"rewards is {rewards!r}; allowed: verify, given")
    dump = open_dump(file)
    known = resolve(dump, layout, columns or {})
    _refuse_unscorable(config, known, rewards, file)
    sampling = sampling_of(config)
    identity = identity_of(config, sampling, Draws([], [], {}))
    if known.logprobs is None:
        identity["sampling"]["logprobs"] = RESCORED
    identity["generation"] = "import"
    identity["problems"] = {
        "source": {"name": "import", "format": layout, "columns": known.named, "rewards": rewards},
        "file": file.name,
        "sha256": file_sha256(file),
    }
    model, prompt = config.model, config.prompt
    source = DumpGroups(
        dump,
        known,
        group_size=config.pool.group_size,
        vocab_size=identity["vocab_size"],
        sampling=sampling,
        tokenizer=load_tokenizer(model.name_or_path, model.revision),
        prompt=PromptFormat(prompt.system, prompt.user_suffix, prompt.chat_template),
        max_prompt_tokens=prompt.max_tokens,
    )
    judging = config.build("verifier", verifier.load) if rewards == "verify" else nullcontext()
    with judging as judge, PoolWriter.create_or_open(path, identity) as writer:
        _fill(config, writer, source, judge, sampling)
        writer.finish()
    return _not_empty(Pool.open(path, check="size"), file)


def _refuse_unscorable(config: Config, columns: Columns, rewards: str, file: Path) -> None:
    if rewards == "verify" and columns.answer is None:
        raise ConfigError(
            f"{file} has no answers to verify the responses with",
            hint="add --answer COLUMN, or keep the file's rewards: --rewards given",
        )
    if rewards == "given" and columns.reward is None:
        raise ConfigError(f"{file} has no rewards", hint="add --reward COLUMN")
    cut = config.sampling.top_p < 1 or config.sampling.top_k or config.sampling.min_p
    if columns.logprobs is None and cut:
        raise ConfigError(
            f"{file} has no log-probs, and scoring gives those of the whole distribution, not of "
            "one cut by top_p, top_k or min_p",
            hint="add --logprobs COLUMN",
        )


def _not_empty(pool: Pool, file: Path) -> Pool:
    if not len(pool):
        raise DataError(
            f"no group of {file} was imported; dropped: {pool.drops}",
            hint=f"pool.group_size is {pool.group_size}: rows of one prompt needed for a group",
        )
    return pool


def _fill(
    config: Config,
    writer: PoolWriter,
    source: DumpGroups,
    judge: Verifier | None,
    sampling: Sampling,
) -> None:
    """Commit chunk after chunk: what a repair took out, then what was never read."""
    ids, size = np.array(source.index.group_ids, np.int64), config.pool.chunk_groups
    fresh = int(np.searchsorted(ids, writer.next_group_id))
    # Groups that were dropped are among these, too; they were counted when they were first read.
    lost = np.flatnonzero(~np.isin(ids[:fresh], writer.committed_group_ids))
    parts = [
        part[first : first + size]
        for part in (lost.tolist(), range(fresh, len(ids)))
        for first in range(0, len(part), size)
    ]
    policy: Policy | None = None
    with Progress("importing", len(ids), "groups") as progress:
        for chunk in parts:
            drops: dict[str, int] = {}
            drafts = _kept(source.drafts(chunk, drops), judge, drops)
            if source.columns.logprobs is None and drafts:
                policy = policy or _policy(config, sampling)
                drafts = _scored(policy, drafts)
            groups = _judged([source.group(draft) for draft in drafts], drafts, judge)
            verifier_id = GIVEN if judge is None else judge.id
            new = chunk[0] >= fresh
            if new or groups:
                after = int(ids[chunk[-1]]) + 1 if new else None
                writer.append(groups, verifier_id, drops if new else None, next_group_id=after)
            progress.update(chunk[-1] + 1)


def _kept(drafts: list[Draft], judge: Verifier | None, drops: dict[str, int]) -> list[Draft]:
    """The groups whose answer the verifier can use."""
    if judge is None:
        return drafts
    refusals = judge.check_gold([draft.problem.answer for draft in drafts])
    if refused := sum(refusal is not None for refusal in refusals):
        drops["gold_unparseable"] = refused
    return [draft for draft, no in zip(drafts, refusals, strict=True) if no is None]


def _policy(config: Config, sampling: Sampling) -> Policy:
    model = config.model
    return load_policy(
        model.name_or_path,
        revision=model.revision,
        dtype=model.dtype,
        device=model.device,
        temperature=sampling.temperature,
    ).eval()


def _scored(policy: Policy, drafts: list[Draft]) -> list[Draft]:
    """The drafts with the policy's log-probs."""
    arrays = [_arrays(draft) for draft in drafts]
    found = []
    for draft, values in zip(drafts, rescore(policy, arrays), strict=True):
        rows = zip(draft.rows, values, strict=True)
        scored = tuple(replace(row, logprobs=tuple(value.tolist())) for row, value in rows)
        found.append(replace(draft, rows=scored))
    return found


def _arrays(draft: Draft) -> GroupArrays:
    ids = [np.array(row.completion_ids, np.int32) for row in draft.rows]
    k = len(ids)
    return GroupArrays(
        group_id=draft.group_id,
        problem_id=draft.problem.id,
        question=draft.problem.question,
        answer=draft.problem.answer,
        prompt_token_ids=np.array(draft.prompt_ids, np.int32),
        response_token_ids=ids,
        behavior_logprobs=[np.zeros(len(one), np.float32) for one in ids],
        rewards=np.full(k, np.nan),
        statuses=["ungraded"] * k,
        texts=[""] * k,
        finish_reasons=["stop"] * k,
        seeds=[None] * k,
    )


def _judged(groups: list[Group], drafts: list[Draft], judge: Verifier | None) -> list[Group]:
    """The groups with their verdicts."""
    if judge is None:
        return [
            replace(group, verdicts=tuple(_given(row.reward) for row in draft.rows))
            for group, draft in zip(groups, drafts, strict=True)
        ]
    pairs = [(g.problem.answer, response.text) for g in groups for response in g.responses]
    verdicts = iter(judge.score(pairs))
    return [
        replace(group, verdicts=tuple(next(verdicts) for _ in group.responses)) for group in groups
    ]


def _given(reward: float | None) -> Verdict:
    if reward is None:
        return Verdict("error")
    return Verdict("correct" if reward > 0 else "incorrect", score=reward)
