"""`load`: the nearest name or parameter, the allowed values, and cheap names."""

import subprocess
import sys

import pytest

from offline_rlvr.errors import ConfigError
from offline_rlvr.objectives import load, names, parameters

EXPECTED = {
    "agro",
    "cispo",
    "ggpo",
    "ggpo_clipped",
    "ggpo_reward_only",
    "grpo",
    "grpo_tis",
    "maxrl",
    "pg",
    "proximal_kl",
    "topr",
}


def test_names():
    assert set(names()) == EXPECTED
    assert names() == sorted(names())


def test_names_import_no_torch():
    code = "import sys, offline_rlvr.objectives as o; o.names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("ggppo", "ggpo"), ("proximalkl", "proximal_kl"), ("GRPO", None)]
)
def test_unknown_name(wrong, nearest):
    with pytest.raises(ConfigError, match=f"no objective '{wrong}'") as caught:
        load(wrong)
    assert caught.value.hint == (nearest and f"did you mean {nearest!r}?")
    assert "proximal_kl" in caught.value.message


@pytest.mark.parametrize("module", ["interface", "parameters", "__init__"])
def test_the_folders_other_files_are_not_objectives(module):
    with pytest.raises(ConfigError, match="there is no objective"):
        load(module)


def test_unknown_parameter():
    with pytest.raises(ConfigError, match="has no parameter 'clip_hight'; it has: ") as caught:
        load("grpo", clip_hight=0.3)
    assert caught.value.hint == "did you mean 'clip_high'?"
    with pytest.raises(ConfigError, match="it has: none"):
        load("pg", beta=0.1)


@pytest.mark.parametrize(
    ("name", "param", "value", "allowed"),
    [
        ("ggpo", "beta", 0, "a number > 0"),
        ("ggpo", "beta", "0.1", "a number > 0"),
        ("ggpo", "beta", True, "a number > 0"),
        ("ggpo", "beta", None, "a number > 0"),
        ("ggpo", "beta", float("nan"), "a number > 0"),
        ("ggpo", "beta", float("inf"), "a number > 0"),
        ("ggpo_clipped", "clip", -0.1, "a number >= 0"),
        ("cispo", "clip_low", 1.5, "a number >= 0.0 and <= 1.0 or null"),
        ("proximal_kl", "horizon", 0, "a whole number >= 1 or null"),
        ("proximal_kl", "horizon", 2.0, "a whole number >= 1 or null or adaptive"),
        ("proximal_kl", "horizon", "adaptve", "a whole number >= 1 or null or adaptive"),
        ("proximal_kl", "importance", "tokens", "token, sequence, none"),
        ("proximal_kl", "reward_range", [1, -1], "two numbers"),
        ("proximal_kl", "reward_range", [0, 1, 2], "two numbers"),
    ],
)
def test_a_value_out_of_range_names_what_is_allowed(name, param, value, allowed):
    with pytest.raises(ConfigError) as caught:
        load(name, **{param: value})
    assert f"{param} is {value!r}" in caught.value.message
    assert f"allowed: {allowed}" in caught.value.message
    assert f"the default is {param}:" in caught.value.hint


def test_values_as_yaml_gives_them():
    objective = load("proximal_kl", beta=1, horizon=None, reward_range=[-1, 1])
    assert (objective.beta, objective.horizon) == (1.0, None)
    assert objective.reward_range == (-1.0, 1.0)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_parameters_are_the_defaults(name):
    objective = load(name)
    assert parameters(name) == {key: getattr(objective, key) for key in parameters(name)}
    assert load(name, **parameters(name)) == objective


def test_defaults_of_the_papers():
    assert load("ggpo").beta == load("agro").beta == 0.01
    assert (load("ggpo_clipped").beta, load("ggpo_clipped").clip) == (0.01, 0.05)
    grpo = load("grpo_tis")
    assert (grpo.clip_low, grpo.clip_high, grpo.dual_clip) == (0.2, 0.2, 10.0)
    assert (grpo.kl_coef, grpo.tis_cap) == (0.01, 2.0)
    assert (load("cispo").clip_high, load("cispo").clip_low) == (0.28, None)
