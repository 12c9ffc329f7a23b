"""The loader: every problem at once, with its place and what is allowed."""

import subprocess
import sys

import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError


def write(folder, text, name="job.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def test_all_problems_are_told_at_once_with_file_and_line(tmp_path):
    path = write(
        tmp_path,
        "objctive: {name: ggpo}\n"
        "train:\n"
        "  groups_per_updat: 3\n"
        "  grad_clip: -1\n"
        "pool:\n"
        "  group_size: one\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert f"{path}:1: objctive: unknown key; did you mean 'objective'?" in message
    assert f"{path}:3: train.groups_per_updat" in message
    assert "did you mean 'groups_per_update'?" in message
    assert f"{path}:4: train.grad_clip: expected greater than 0, found -1" in message
    assert f"{path}:6: pool.group_size" in message
    assert caught.value.exit_code == 2


def test_an_unknown_key_without_a_near_one_lists_what_is_allowed(tmp_path):
    with pytest.raises(ConfigError, match="allowed here: refresh_every"):
        load_config(write(tmp_path, "reference: {zzz: 1}\n"))


@pytest.mark.parametrize(
    ("text", "value"), [("3e-5", 3e-5), ("1", 1.0), ("0.5", 0.5), (".5", 0.5), ("2.E+1", 20.0)]
)
def test_numbers_are_read_as_people_write_them(tmp_path, text, value):
    config = load_config(write(tmp_path, f"train: {{learning_rate: {text}}}\n"))
    assert config.train.learning_rate == value


def test_no_is_text_and_not_false(tmp_path):
    path = write(tmp_path, "prompt: {system: no}\nmodel: {gradient_checkpointing: true}\n")
    config = load_config(path)
    assert config.prompt.system == "no"
    assert config.model.gradient_checkpointing is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: [1, 2\n", "not valid YAML"),
        ("- a\n", "expected keys"),
        ("train: {seed: 1, seed: 2}\n", "written twice"),
        ("base: 3\n", "a path of another YAML file"),
        ("base: job.yaml\n", "leads back to this file"),
        ("base: none.yaml\n", "cannot read"),
        ("train: {learning_rate: .nan}\n", "learning_rate"),
        ("train: {learning_rate: .inf}\n", "learning_rate"),
        ("train: {betas: [2.0, 0.9]}\n", "betas"),
        ("x: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
    ],
)
def test_unusable_files_are_refused(tmp_path, text, words):
    with pytest.raises(ConfigError, match=words):
        load_config(write(tmp_path, text))


def test_a_missing_file_says_where_examples_are(tmp_path):
    with pytest.raises(ConfigError, match="configs/"):
        load_config(tmp_path / "none.yaml")


def test_overrides_win_over_the_file_and_the_file_over_its_base(tmp_path):
    write(tmp_path, "train: {seed: 1, learning_rate: 1e-3, warmup_updates: 7}\n", "base.yaml")
    path = write(tmp_path, "base: base.yaml\ntrain: {seed: 2, learning_rate: 2e-3}\n")
    config = load_config(path, [("train.seed", "3"), ("train.grad-clip", "null")])
    assert (config.train.seed, config.train.learning_rate) == (3, 2e-3)
    assert config.train.warmup_updates == 7
    assert config.train.grad_clip is None
    assert config.where("train", "seed") == "command line --train.seed"
    assert config.where("train", "warmup_updates") == f"{tmp_path / 'base.yaml'}:1"


def test_another_objective_does_not_inherit_settings_of_the_first(tmp_path):
    path = write(tmp_path, "objective: {name: ggpo, beta: 1.0}\n")
    assert load_config(path).objective.params == {"beta": 1.0}
    assert load_config(path, [("objective.beta", "0.5")]).objective.params == {"beta": 0.5}
    changed = load_config(path, [("objective.name", "proximal_kl"), ("objective.horizon", "4")])
    assert changed.objective.params == {"horizon": 4}


def test_a_bad_override_is_named_as_such(tmp_path):
    path = write(tmp_path, "{}\n")
    with pytest.raises(
        ConfigError, match=r"command line --pool.grop_size: .*did you mean 'group_size'"
    ):
        load_config(path, [("pool.grop_size", "3")])


def test_the_resolved_file_loads_to_the_same_config(tmp_path):
    path = write(tmp_path, "objective: {name: ggpo, beta: 1.0}\nmodel: {lora: {rank: 4}}\n")
    config = load_config(path)
    again = load_config(write(tmp_path, config.to_yaml(), "resolved.yaml"))
    assert again.model_dump() == config.model_dump()


def test_build_names_the_section_of_a_part_that_refuses(tmp_path):
    path = write(tmp_path, "train: {seed: 1}\nobjective: {name: ggpo}\n")

    def load(name, **params):
        raise ConfigError("no such thing", hint="try another")

    with pytest.raises(ConfigError, match=rf"{path}:2: objective: no such thing"):
        load_config(path).build("objective", load)


def test_config_and_help_import_no_torch():
    code = (
        "import sys, offline_rlvr.config, offline_rlvr.records, offline_rlvr.cli.main;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
