"""Every committed config: it loads, its parts exist, and what can be read here is dry-run."""

import pathlib

import pytest

from offline_rlvr import generation, objectives, problems, verifier
from offline_rlvr.config import load_config
from offline_rlvr.config.study import load_study
from offline_rlvr.trainer.estimate import estimate

REPOSITORY = pathlib.Path(__file__).parents[2]
STUDIES = sorted((REPOSITORY / "configs/studies").glob("*/study.yaml"))
CONFIGS = sorted(set((REPOSITORY / "configs").rglob("*.yaml")) - set(STUDIES))
TINY = REPOSITORY / "pools/tiny"
LOCAL = [path for path in CONFIGS if path.parent.name == "configs"]
every_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)


def test_there_is_one_job_per_objective_and_it_is_short():
    for name in objectives.names():
        path = REPOSITORY / "configs" / f"{name}.yaml"
        assert load_config(path).objective.name == name
        assert len(path.read_text().splitlines()) < 15


@every_config
def test_its_parts_can_be_built(path):
    config = load_config(path)
    config.build("objective", objectives.load)
    config.build("verifier", verifier.load)
    assert config.generation.name in generation.BACKENDS
    assert config.problems.name in problems.names()


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_every_run_of_a_study_can_be_built(path):
    study = load_study(path)
    assert len(study.jobs) == len(study.methods) * len(study.seeds)
    for config in study.jobs.values():
        config.build("objective", objectives.load)
        config.build("evaluation.problems", problems.load)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.parent.name)
def test_every_method_of_a_study_is_dry_run_on_the_committed_pool(path):
    """Those of the built-in model; as if their groups were as large as the committed pool's."""
    study = load_study(path)
    if study.pool_job.model.name_or_path != "builtin":
        return
    for (_, seed), config in study.jobs.items():
        if seed == study.seeds[0]:
            pool = config.pool.model_copy(update={"probe_groups": 8, "group_size": 8})
            lines = estimate(config.model_copy(update={"pool": pool}), TINY)
            assert any(line.startswith("plan ") for line in lines)


@pytest.mark.parametrize("path", LOCAL, ids=lambda path: path.name)
def test_it_is_dry_run_on_the_committed_pool(path):
    """All but `paper/`: their pools need models and data sets of the hub."""
    lines = estimate(load_config(path, [("pool.probe_groups", "8")]), TINY)
    assert any(line.startswith("plan ") for line in lines)
    assert "old           refreshed every 8 updates" in lines or path.stem != "grpo_tis"
    assert "reference     fixed" in lines or not path.stem.startswith("grpo")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs/paper").glob("*_offline.yaml")))
def test_the_ggpo_papers_numbers(path):
    config = load_config(path)
    assert config.pool.group_size == 8
    assert config.pool.mixed_groups == config.train.max_updates * config.train.groups_per_update
    assert (config.train.groups_per_update, config.train.max_updates) == (32, 400)
    assert (config.evaluation.every, config.evaluation.k) == (80, 32)
    fixed = config.objective.name.startswith("grpo")
    assert config.reference.refresh_every == (None if fixed else 160)
    expected = {
        "ggpo": {"beta": 0.01},
        "ggpo_clipped": {"beta": 0.01, "clip": 0.05},
        "agro": {"beta": 0.01},
        "grpo": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 10.0, "kl_coef": 0.01},
    }
    expected["grpo_tis"] = {**expected["grpo"], "tis_cap": 2.0}
    assert config.objective.params == expected[config.objective.name]
    assert config.old.refresh_every == 8
