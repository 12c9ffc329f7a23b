"""The builder: real model and verifier, budgets, gates, the same pool after interruptions."""

import random
import time

import numpy as np
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError, IncompatibleError, QualityGateError
from offline_rlvr.generation import seed_for
from offline_rlvr.pool import Pool, selection
from offline_rlvr.pool.build import build_pool, dry_run, pilot
from offline_rlvr.problems import load as load_problems

#: float32 with and without a KV cache, in another batch shape, in nats.
KERNEL_NOISE = 1e-4


def job(small_job, *overrides):
    return load_config(small_job, overrides)


def test_enough_mixed_groups_remain_beside_the_probe(small_pool):
    pool = Pool.open(small_pool)
    training, probe = selection.training(pool, probe_groups=3)
    assert len(training) >= 24
    assert len(probe) == 3
    assert not set(training) & set(probe)


def test_every_sample_is_kept_right_or_wrong_mixed_or_not(small_pool):
    pool = Pool.open(small_pool)
    index = pool.index
    assert len(pool) % 16 == 0, "whole chunks"
    assert len(pool) > index.mixed.sum() > 0
    assert index.group_ids.tolist() == list(range(len(pool)))


def test_responses_answers_and_seeds_are_what_they_say(small_pool):
    pool = Pool.open(small_pool)
    answers = {p.question: p.answer for p in load_problems("arithmetic", count=200, seed=3)}
    for group in pool.read(range(8)):
        assert answers[group.question] == group.answer
        for text, reward in zip(group.texts, group.rewards, strict=True):
            assert (text.strip() == rf"\boxed{{{group.answer}}}") == (reward == 1)
        assert list(group.seeds) == [seed_for(0, group.group_id, i) for i in range(4)]


def test_stored_logprobs_are_those_of_a_plain_forward(small_pool):
    import torch

    from offline_rlvr.generation.pretrained import load_model

    model, pool = load_model("builtin"), Pool.open(small_pool)
    for group in pool.read(range(6)):
        for ids, stored in zip(group.response_token_ids, group.behavior_logprobs, strict=True):
            row = torch.from_numpy(np.concatenate([group.prompt_token_ids, ids]).astype(np.int64))
            with torch.no_grad():
                logits = model(input_ids=row[None]).logits[0, len(group.prompt_token_ids) - 1 : -1]
            values = logits.double().log_softmax(-1).gather(1, row[-len(ids) :, None])[:, 0]
            np.testing.assert_allclose(values.numpy(), stored, atol=KERNEL_NOISE)


def test_typed_again_it_adds_nothing(small_job, own_pool):
    before = Pool.open(own_pool).hash
    build_pool(job(small_job), own_pool)
    assert Pool.open(own_pool).hash == before


def test_a_larger_goal_continues_the_same_pool(small_job, small_pool, own_pool):
    build_pool(job(small_job, ("pool.mixed_groups", "40")), own_pool)
    old, new = Pool.open(small_pool), Pool.open(own_pool)
    assert len(new) > len(old)
    first, again = old.read([0])[0], new.read([0])[0]
    assert first.texts == again.texts


def test_another_seed_is_another_pool_and_refused_here(small_job, own_pool):
    with pytest.raises(IncompatibleError, match="seed"):
        build_pool(job(small_job, ("pool.seed", "1")), own_pool)


def test_a_used_up_budget_keeps_everything_and_says_how_to_go_on(small_job, small_pool, tmp_path):
    pool = tmp_path / "pool"
    with pytest.raises(QualityGateError, match=r"of 24 mixed groups .*groups is used up") as caught:
        build_pool(job(small_job, ("pool.max_sampled_groups", "20")), pool)
    assert caught.value.exit_code == 6
    assert len(Pool.open(pool)) == 20
    build_pool(job(small_job), pool)
    training = selection.training(Pool.open(pool), probe_groups=3)[0]
    assert len(training) >= 24


def test_problems_that_cannot_be_used_are_dropped_and_counted(small_job, tmp_path):
    questions = tmp_path / "q.jsonl"
    rows = [
        '{"question": "1 + 1", "answer": "2"}',
        '{"question": "1 + 1", "answer": "2"}',
        '{"question": "2 + 2", "answer": "$x + $"}',
        '{"question": "' + "1 + " * 40 + '1", "answer": "41"}',
        '{"question": "3 + 4", "answer": "7"}',
    ]
    questions.write_text("\n".join(rows))
    config = job(
        small_job,
        ("problems", f"{{name: files, path: {questions}}}"),
        ("prompt.max_tokens", "40"),
        ("pool.mixed_groups", "1"),
        ("pool.probe_groups", "0"),
    )
    with pytest.raises(QualityGateError, match="of 2 problems"):
        build_pool(job_with_impossible_goal(config), tmp_path / "pool")
    assert Pool.open(tmp_path / "pool").drops == {
        "duplicate": 1,
        "prompt_too_long": 1,
        "gold_unparseable": 1,
    }


def job_with_impossible_goal(config):
    return config.model_copy(update={"pool": config.pool.model_copy(update={"mixed_groups": 99})})


def test_truncated_sampling_must_be_asked_for(small_job, tmp_path):
    config = job(small_job, ("sampling.top_p", "0.9"))
    with pytest.raises(ConfigError, match="allow_truncated_sampling"):
        build_pool(config, tmp_path / "pool")
    assert not (tmp_path / "pool").exists()


def test_too_many_unscored_responses_stop_the_build_and_keep_the_data(small_job, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def reward(completions, answer, **kwargs):\n    return [None]\n")
    config = job(small_job, ("verifier", f"{{name: function, path: '{reward}:reward'}}"))
    with pytest.raises(QualityGateError, match="could not be scored"):
        build_pool(config, tmp_path / "pool")
    # The first chunk tells; what was sampled meanwhile is kept, too.
    assert len(Pool.open(tmp_path / "pool")) == 32


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_killed_again_and_again_the_build_ends_in_the_same_pool(
    start, small_job, small_pool, soak_seed, tmp_path, kills
):
    pool, chance = tmp_path / "pool", random.Random(soak_seed)
    for _ in range(kills):
        process = start("pool", "build", small_job, "-o", pool)
        commits = len(list(pool.glob("commits/*.json")))
        deadline = time.monotonic() + 120
        while len(list(pool.glob("commits/*.json"))) == commits and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(chance.random() * 0.3)
        process.kill()
        process.wait()
    process = start("pool", "build", small_job, "-o", pool)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert Pool.open(pool).hash == Pool.open(small_pool).hash


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("generation.name", "vlm", "unknown generation back-end 'vlm'"),
        ("generation.batch_size", "many", "batch_size is 'many'; it should be a valid integer"),
        ("generation.batch_size", "1.5", "batch_size is 1.5; it should be a valid integer"),
        ("generation.tensor_parallel_size", "2", "'hf' has no setting 'tensor_parallel_size'"),
        ("problems.count", "many", "count is 'many'; it should be a valid integer"),
        ("problems.seed", "one", "seed is 'one'; it should be a valid integer"),
    ],
)
def test_settings_of_a_part_are_checked_before_a_folder_is_made(
    small_job, tmp_path, key, value, message
):
    config, path = job(small_job, (key, value)), tmp_path / "pool"
    for attempt in (dry_run, build_pool):
        with pytest.raises(ConfigError, match=message):
            attempt(config, path)
    assert not path.exists()


def test_a_pool_without_a_commit_takes_other_settings(small_job, tmp_path):
    path = tmp_path / "pool"
    with pytest.raises(ConfigError, match="device"):
        build_pool(job(small_job, ("model.device", "cuda:99")), path)
    few = ("pool.mixed_groups", "1"), ("pool.probe_groups", "0"), ("pool.seed", "7")
    dry_run(job(small_job, *few), path)
    assert build_pool(job(small_job, *few), path).identity["seed"] == 7
    with pytest.raises(IncompatibleError, match="seed"):
        build_pool(job(small_job, *few[:2]), path)


def test_a_pilot_of_nothing(small_job, tmp_path):
    with pytest.raises(ConfigError, match="at least 1"):
        pilot(job(small_job), tmp_path / "pool", 0)
    assert not (tmp_path / "pool").exists()
