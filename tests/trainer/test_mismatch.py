"""A pool whose stored log-probs are not what it says: refused before training, with the reason."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from offline_rlvr.config import load_config
from offline_rlvr.errors import IncompatibleError
from offline_rlvr.generation.pretrained import load_model
from offline_rlvr.policy import load_policy
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.records import Group, Problem, Response, Verdict
from offline_rlvr.stream.data import collate
from offline_rlvr.trainer.mismatch import explain
from offline_rlvr.trainer.recheck import recheck
from offline_rlvr.trainer.run import train


@pytest.fixture(scope="module")
def batch(small_pool):
    pool = Pool.open(small_pool)
    return collate(pool.read(pool.index.group_ids[:8]))


@pytest.fixture
def policy():
    return load_policy("builtin").eval()


def storing(batch, logprobs):
    """The batch with other stored log-probs."""
    return dataclasses.replace(batch, behavior_logprobs=logprobs * batch.response_mask)


def plain_logits(batch, g, k):
    """[T, V] logits of one response by a plain forward pass, and its ids."""
    model = load_model("builtin")
    p, n = int(batch.prompt_lengths[g]), int(batch.response_lengths[g, k])
    ids = torch.cat([batch.prompt_token_ids[g, :p], batch.response_token_ids[g, k, :n]]).long()
    with torch.no_grad():
        return model(input_ids=ids[None]).logits[0, p - 1 : -1], ids[p:]


def rescored(batch, change):
    """Stored log-probs as another sampler would have given them: change(logits [T, V])."""
    out = torch.zeros_like(batch.behavior_logprobs)
    for g in range(batch.rewards.shape[0]):
        for k in range(batch.rewards.shape[1]):
            logits, ids = plain_logits(batch, g, k)
            values = change(logits, ids).log_softmax(-1).gather(1, ids[:, None])[:, 0]
            out[g, k, : len(ids)] = values
    return out


def test_raw_log_probs(batch):
    policy = load_policy("builtin", temperature=0.5).eval()
    found = explain(policy, batch, 1e-3)
    assert "raw ones, taken before the temperature of 0.5" in found
    assert policy.temperature == 0.5, "as found"


def test_another_temperature(batch, policy):
    other = storing(batch, rescored(batch, lambda logits, ids: logits / 0.6))
    assert "fit a temperature of 0.6; recorded is 1" in explain(policy, other, 1e-3)


def test_renormalized_after_truncation(batch, policy):
    def top_2(logits, ids):
        kept = logits.topk(2).indices
        mask = torch.full_like(logits, -torch.inf).scatter(1, kept, 0).scatter(1, ids[:, None], 0)
        return logits + mask

    other = storing(batch, rescored(batch, top_2))
    assert "top-p, top-k or min-p" in explain(policy, other, 1e-3)


@pytest.mark.parametrize("places", [1, -1])
def test_off_by_one(batch, policy, places):
    other = storing(batch, batch.behavior_logprobs.roll(places, -1))
    assert "off by one" in explain(policy, other, 1e-3)


def test_another_model(batch):
    other = load_policy("builtin").eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.3 * parameter.std() * torch.randn_like(parameter)
    assert "another model, or another prompt" in explain(other, batch, 1e-3)


def test_the_trainer_says_it_before_anything_is_trained(small_job, small_pool, tmp_path):
    """A pool that claims to be sampled at 0.5 with log-probs taken before the temperature."""
    pool = Pool.open(small_pool)
    identity = json.loads(json.dumps(pool.identity))
    identity["sampling"]["temperature"] = 0.5
    with PoolWriter.create_or_open(tmp_path / "pool", identity) as writer:
        writer.append([as_record(group) for group in pool.read(pool.index.group_ids)], "other")
    job = load_config(small_job, [("sampling.temperature", "0.5")])
    with pytest.raises(IncompatibleError, match=r"raw ones, taken before the temperature of 0\.5"):
        train(job, tmp_path / "pool", tmp_path / "run")
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    with pytest.raises(IncompatibleError, match="raw ones, taken before"):
        recheck(Pool.open(tmp_path / "pool"), groups=8, max_noise=0.1)


def test_no_false_alarm_at_kernel_noise(small_job, small_pool, tmp_path):
    pool = Pool.open(small_pool)
    noise = np.random.default_rng(0)
    with PoolWriter.create_or_open(tmp_path / "pool", pool.identity) as writer:
        groups = [as_record(g, noise) for g in pool.read(pool.index.group_ids)]
        writer.append(groups, "other")
    train(load_config(small_job, [("train.max_updates", "1")]), tmp_path / "pool", tmp_path / "run")


def as_record(group, noise=None):
    """A stored group as the writer takes it, with noise of sd 0.05 on the log-probs."""
    sd = 0.05 if noise is not None else 0.0
    draw = noise or np.random.default_rng(0)
    responses = tuple(
        Response(
            tuple(ids.tolist()),
            tuple(np.minimum(p + sd * draw.standard_normal(len(p)), 0).tolist()),
            text,
            "length" if cut else "stop",
        )
        for ids, p, text, cut in zip(
            group.response_token_ids,
            group.behavior_logprobs,
            group.texts,
            [reason == "length" for reason in group.finish_reasons],
            strict=True,
        )
    )
    verdicts = tuple(Verdict(status) for status in group.statuses)
    problem = Problem(group.problem_id, group.question, group.answer)
    return Group(
        group.group_id, problem, tuple(group.prompt_token_ids.tolist()), responses, verdicts
    )
