"""The committed study of a real pretrained model: its runs are those that its README tells of."""

import pathlib

from offline_rlvr import objectives
from offline_rlvr.config.study import load_study

FOLDER = pathlib.Path(__file__).parents[2] / "configs/studies/smollm2"
STUDY = load_study(FOLDER / "study.yaml")


def test_three_objectives_each_with_all_weights_and_with_an_adapter():
    assert STUDY.name == "smollm2"
    trained = {
        (config.objective.name, config.model.lora is not None)
        for (_, _), config in STUDY.jobs.items()
    }
    assert trained == {
        (name, adapter) for name in ("ggpo", "proximal_kl", "grpo") for adapter in (False, True)
    }
