"""vLLM as the engine of evaluations: it answers with the base, then with what was trained."""

import importlib.util

import numpy as np
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.evaluation import mean_at_k, read_evaluations
from offline_rlvr.trainer.evaluate import evaluate_run
from offline_rlvr.trainer.run import train

ENGINE = "{name: vllm, max_model_len: 128}"
#: Standard errors within which two means must agree: by chance they do not once in 15,000 times.
SIGMAS = 4


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("lora", ["null", "{rank: 4}"], ids=["full", "lora"])
def test_vllm_is_as_right_as_the_learner(small_job, small_pool, tmp_path, start, lora):
    run, settings = (
        tmp_path / "run",
        {
            "model.lora": lora,
            "train.learning_rate": "1e-2",  # much worse after six updates
            "evaluation.problems.count": "100",
            "evaluation.k": "8",
        },
    )
    given = [part for key, value in settings.items() for part in (f"--{key}", value)]
    process = start(
        "train", small_job, "--pool", small_pool, "--run", run, *given,
        "--evaluation.generation", ENGINE,
    )  # fmt: skip
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    by_engine = read_evaluations(run)
    # The same command goes on with the learner, which answers what is not there.
    for file in (run / "evaluations").iterdir():
        file.unlink()
    train(load_config(small_job, [*settings.items()]), small_pool, run)
    by_learner = read_evaluations(run)
    assert [e.update for e in by_engine] == [e.update for e in by_learner] == [0, 6]
    assert len(evaluate_run(run)) == 2
    for engine, learner in zip(by_engine, by_learner, strict=True):
        difference = mean_at_k(engine.rewards) - mean_at_k(learner.rewards)
        error = difference.std(ddof=1) / len(difference) ** 0.5
        assert abs(difference.mean()) < SIGMAS * error + 1e-9
    before, after = (np.mean(e.rewards) for e in by_engine)
    assert before > after + 0.1
