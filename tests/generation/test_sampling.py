"""Sampling settings and seeds."""

import math
import subprocess
import sys

import pytest

from offline_rlvr.errors import ConfigError
from offline_rlvr.generation import Sampling, load, seed_for


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": 0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"top_k": -1},
        {"min_p": -0.1},
        {"min_p": 1.0},
        {"stop_token_ids": (2, -1)},
    ],
)
def test_out_of_range(wrong: dict):
    with pytest.raises(ConfigError, match=f"sampling.{next(iter(wrong))} is"):
        Sampling(**{"max_new_tokens": 4, **wrong})


def test_truncated():
    assert not Sampling(4, temperature=0.6).truncated
    assert Sampling(4, top_p=0.9).truncated
    assert Sampling(4, top_k=1).truncated
    assert Sampling(4, min_p=0.1).truncated


def test_everything_in_effect_is_stated():
    assert Sampling(4, temperature=0.6, stop_token_ids=(2,)).as_dict() == {
        "max_new_tokens": 4,
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "stop_token_ids": [2],
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_new_tokens": 0,
        "logprobs": "sampled_distribution",
    }


def test_seeds_are_pure_and_different():
    seeds = {seed_for(run, group, k) for run in range(3) for group in range(200) for k in range(8)}
    assert len(seeds) == 3 * 200 * 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Pinned: a pool that is continued must draw what it would have drawn.
    assert seed_for(0, 17, 3) == 5447739810897169987
    assert seed_for(1, 12, 3) != seed_for(11, 2, 3)


def test_unknown_back_end():
    with pytest.raises(
        ConfigError, match="unknown generation back-end 'hff'; allowed: hf, vllm, server"
    ):
        load("hff")


def test_a_setting_of_another_back_end():
    message = r"'vllm' has no setting 'batch_size'; it has: .*tensor_parallel_size"
    with pytest.raises(ConfigError, match=message):
        load("vllm", name_or_path="builtin", sampling=Sampling(4), batch_size=8)
    with pytest.raises(ConfigError, match="'server' needs the setting 'url'"):
        load("server", name_or_path="builtin", sampling=Sampling(4))


def test_the_package_imports_no_torch():
    code = "import sys, offline_rlvr.generation; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
