"""The committed study of a real pretrained model: what its runs share, and in what they differ."""

import pathlib

import pytest

from offline_rlvr import problems
from offline_rlvr.config.study import load_study

FILE = pathlib.Path(__file__).parents[2] / "configs/studies/smollm2/study.yaml"
STUDY = load_study(FILE)
OBJECTIVES = ("ggpo", "proximal_kl", "grpo")


def flat(value, prefix=""):
    if not isinstance(value, dict):
        return {prefix: value}
    return {k: v for key in value for k, v in flat(value[key], f"{prefix}.{key}").items()}


def differences(one, other):
    one, other = flat(one.model_dump()), flat(other.model_dump())
    keys = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    return {key[1:].partition(".lora")[0] for key in keys}


def test_every_objective_trains_all_weights_and_an_adapter_with_three_seeds():
    methods = [name + kind for kind in ("", "_lora") for name in OBJECTIVES]
    assert list(STUDY.jobs) == [(method, seed) for seed in (0, 1, 2) for method in methods]
    for (method, _), config in STUDY.jobs.items():
        assert config.objective.name == method.removesuffix("_lora")
        assert (config.model.lora is not None) == method.endswith("_lora")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_adapter_differs_in_its_rank_and_learning_rate_alone(objective):
    full, adapter = STUDY.jobs[objective, 0], STUDY.jobs[f"{objective}_lora", 0]
    assert differences(full, adapter) == {"model", "train.learning_rate"}


@pytest.mark.parametrize("objective", OBJECTIVES[1:])
def test_objectives_differ_in_their_own_settings_and_reference_alone(objective):
    found = differences(STUDY.jobs["ggpo", 0], STUDY.jobs[objective, 0])
    assert {key.partition(".")[0] for key in found} <= {"objective", "reference"}


def test_the_pool_is_large_enough_and_held_out_sums_are_new():
    job = STUDY.pool_job
    assert job.generation.name == "vllm"
    probe = job.pool.probe_groups * 2  # drawn from all groups, mixed or not
    assert job.train.max_updates is not None
    assert job.train.groups_per_update * job.train.max_updates + probe <= job.pool.mixed_groups
    pool = {p.question for p in job.build("problems", problems.load)}
    heldout = {p.question for p in job.build("evaluation.problems", problems.load)}
    assert not pool & heldout
    assert all(set(question) <= set("0123456789 +") for question in pool | heldout)
