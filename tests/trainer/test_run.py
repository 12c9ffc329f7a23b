"""One training from pool to run folder: what it writes, and that it does what it claims."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from offline_rlvr.config import load_config
from offline_rlvr.diagnostics.catalogue import describe
from offline_rlvr.errors import ConfigError, IncompatibleError, QualityGateError
from offline_rlvr.evaluation import read_evaluation, read_evaluations
from offline_rlvr.stream import Plan, read_rows
from offline_rlvr.trainer.evaluate import evaluate_run
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

#: One float32 forward differs from another (other batch shape, KV cache) by about this, in nats.
KERNEL_NOISE = 1e-4


def job(small_job, *overrides):
    return load_config(small_job, overrides)


@pytest.fixture(scope="module")
def finished(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "ggpo"
    train(job(small_job), small_pool, path)
    return path


def test_the_run_is_proven_exactly_once(finished):
    plan = Plan.load(finished / "plan.parquet")
    ledger = list(read_rows(finished / "ledger.jsonl"))
    trained = [group for row in ledger for group in row["group_ids"]]
    assert trained == list(plan.group_ids[:24])
    assert len(set(trained)) == 24
    proof = verify_run(finished)
    assert f"update 6 of {plan.updates} hold 24 of {len(plan.group_ids)} groups" in proof


def test_drift_to_the_reference_is_zero_right_after_a_refresh_and_only_then(finished):
    rows = list(read_rows(finished / "metrics.jsonl"))
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6]
    zero = [row["reference/k3"] == 0 and row["reference/log_ratio_nats"] == 0 for row in rows]
    assert zero == [True, False, False, True, False, False]


def test_drift_starts_at_the_noise_floor_and_grows(finished):
    rows = list(read_rows(finished / "metrics.jsonl"))
    drift = [row["drift/abs_log_ratio"] for row in rows]
    assert rows[0]["drift/noise_floor"] == drift[0] < KERNEL_NOISE
    assert drift[5] > 100 * drift[0]
    assert rows[5]["weights/ess"] < rows[0]["weights/ess"] <= 1


def test_every_metric_is_in_the_catalogue_and_the_main_ones_are_there(finished):
    rows = list(read_rows(finished / "metrics.jsonl"))
    for key in rows[0].keys() - {"update"}:
        assert describe(key).definition
    wanted = {
        "drift/abs_log_ratio", "drift/k3_behavior_policy", "drift/k1_behavior_policy",
        "drift/fraction_above_0.1", "weights/ess", "weights/ess_update", "reference/k3",
        "reference/log_ratio_nats", "gibbs/ess_q", "gibbs/ess_q_median", "gibbs/ess_success",
        "gibbs/loss", "gibbs/negative_correct_fraction", "policy/entropy", "train/grad_norm",
        "probe/abs_log_ratio", "probe/k3_behavior_policy",
    }  # fmt: skip
    assert all(wanted <= row.keys() for row in rows)


def test_response_rows_agree_with_the_pool_and_the_weights_sum_to_one(finished, small_pool):
    from offline_rlvr.pool import Pool

    pool = Pool.open(small_pool)
    rows = pq.read_table(finished / "responses").to_pylist()
    assert len(rows) == 24 * 4
    by_group = {}
    for row in rows:
        by_group.setdefault((row["update"], row["group_id"]), []).append(row)
    for (_, group_id), members in by_group.items():
        group = pool.read([group_id])[0]
        members.sort(key=lambda row: row["index"])
        assert [row["reward"] for row in members] == group.rewards.tolist()
        stored = [float(values.sum(dtype=np.float64)) for values in group.behavior_logprobs]
        np.testing.assert_allclose([row["s_behavior"] for row in members], stored, rtol=1e-6)
        assert sum(row["q"] for row in members) == pytest.approx(1, abs=1e-9)


def test_the_checkpoint_is_a_model_that_transformers_loads(finished):
    folders = sorted((finished / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["update-000004", "update-000006"]
    model = AutoModelForCausalLM.from_pretrained(folders[-1] / "model")
    base = AutoModelForCausalLM.from_pretrained(folders[0] / "model")
    moved = [
        not torch.equal(a, b) for a, b in zip(model.parameters(), base.parameters(), strict=True)
    ]
    assert all(moved)


def test_it_is_evaluated_before_and_after(finished):
    before, after = read_evaluations(finished)
    assert (before.update, after.update) == (0, 6)
    assert before.problem_ids == after.problem_ids
    assert before.rewards.shape == (5, 4)


def test_a_lost_evaluation_is_made_up_for_with_the_same_result(small_job, small_pool, finished):
    files = sorted((finished / "evaluations").iterdir())
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    train(job(small_job), small_pool, finished)
    assert [file.read_bytes() for file in files] == contents


def test_same_seed_same_plan_for_another_objective(small_job, small_pool, finished, tmp_path):
    config = job(small_job, ("objective.name", "proximal_kl"), ("train.max_updates", "2"))
    train(config, small_pool, tmp_path / "run")
    facts = [json.loads((p / "run.json").read_text()) for p in (finished, tmp_path / "run")]
    assert facts[0]["plan"]["hash"] == facts[1]["plan"]["hash"]
    assert facts[1]["objective"] == {"name": "proximal_kl"}


def test_a_fixed_reference_is_scored_once_and_stays(small_job, small_pool, tmp_path):
    config = job(small_job, ("reference.refresh_every", "null"), ("evaluation.problems", "null"))
    train(config, small_pool, tmp_path / "run")
    rows = list(read_rows(tmp_path / "run/metrics.jsonl"))
    assert [row["reference/k3"] == 0 for row in rows] == [True] + [False] * 5
    # The fixed reference is the policy that built the pool, so both drifts are the same number.
    for row in rows[1:]:
        assert row["reference/k3"] == pytest.approx(row["drift/k3_behavior_policy"], rel=1e-2)
    tables = [path.name for path in (tmp_path / "run/anchors").iterdir()]
    assert tables == ["reference-000001.safetensors"]


def test_lora_trains_the_adapter_and_saves_it_for_peft(small_job, small_pool, tmp_path):
    from peft import PeftModel

    config = job(
        small_job,
        ("model.lora", "{rank: 4, alpha: 8}"),
        ("train.max_updates", "2"),
        ("train.learning_rate", "1e-2"),
    )
    train(config, small_pool, tmp_path / "run")
    rows = list(read_rows(tmp_path / "run/metrics.jsonl"))
    assert rows[0]["drift/abs_log_ratio"] < KERNEL_NOISE < rows[1]["drift/abs_log_ratio"]
    from offline_rlvr.generation.pretrained import load_model

    folder = tmp_path / "run/checkpoints/update-000002/model"
    PeftModel.from_pretrained(load_model("builtin"), folder)


def test_a_policy_that_blows_up_stops_before_the_step(small_job, small_pool, tmp_path):
    config = job(small_job, ("train.learning_rate", "1e30"), ("evaluation.problems", "null"))
    words = r"update \d: .*not finite; no step was taken"
    with pytest.raises(QualityGateError, match=words) as caught:
        train(config, small_pool, tmp_path / "run")
    assert "Groups: [" in str(caught.value)
    applied = [row["update"] for row in read_rows(tmp_path / "run/ledger.jsonl")]
    assert applied == list(range(1, len(applied) + 1))
    assert len(applied) < 6


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (("prompt.user_suffix", "'!'"), "prompt settings"),
        (("pool.group_size", "8"), "pool.group_size"),
        (("sampling.temperature", "0.7"), r"sampling.temperature \(1.0 in the pool, 0.7 here\)"),
    ],
)
def test_a_pool_of_other_settings_is_refused(small_job, small_pool, tmp_path, override, words):
    with pytest.raises(IncompatibleError, match=words):
        train(job(small_job, override), small_pool, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_model_is_refused_by_its_weights(small_job, small_pool, finished, tmp_path):
    other = finished / "checkpoints/update-000006/model"
    config = job(small_job, ("model.name_or_path", str(other)))
    with pytest.raises(IncompatibleError, match="weights"):
        train(config, small_pool, tmp_path / "run")


def test_the_base_answers_once_for_all_runs_and_is_judged_in_each(
    small_job, small_pool, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OFFLINE_RLVR_CACHE", str(tmp_path / "cache"))

    def base(name, *overrides):
        train(job(small_job, ("train.max_updates", "1"), *overrides), small_pool, tmp_path / name)
        reused = "the base model's answers to arithmetic: reused" in capsys.readouterr().out
        return reused, read_evaluations(tmp_path / name)[0]

    reused, first = base("one")
    assert not reused
    reused, again = base("two", ("objective", "{name: grpo}"))
    assert reused
    assert (again.update, again.texts, again.statuses) == (0, first.texts, first.statuses)
    np.testing.assert_array_equal(again.lengths, first.lengths)
    (tmp_path / "judge.py").write_text("def zero(completions, **rest): return [0.0]\n")
    judge = f"{{name: function, path: '{tmp_path}/judge.py:zero'}}"
    reused, judged = base("judge", ("verifier", judge))
    assert reused
    assert judged.texts == first.texts
    assert judged.rewards.sum() == 0 < first.rewards.sum()
    for name, change in {"k": ("evaluation.k", "3"), "seed": ("evaluation.seed", "5")}.items():
        assert not base(name, change)[0]


ENGINE = ("evaluation.generation", "{name: hf, batch_size: 7}")


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_an_engine_answers_with_the_weights_of_each_checkpoint(
    small_job, small_pool, tmp_path, lora
):
    """A model that transformers loads from the checkpoint answers as the learner itself does."""
    settings = [("train.learning_rate", "1e-3"), ("evaluation.every", "3")]
    if lora:
        settings = [("model.lora", "{rank: 4}"), ("train.learning_rate", "1e-2"), settings[1]]
    train(job(small_job, *settings), small_pool, tmp_path / "learner")
    train(job(small_job, *settings, ENGINE), small_pool, tmp_path / "engine")
    learner, engine = (read_evaluations(tmp_path / name) for name in ("learner", "engine"))
    assert [e.update for e in engine] == [0, 3, 6]
    assert [e.texts for e in engine] == [e.texts for e in learner]
    assert engine[0].texts != engine[2].texts
    # It may be changed later, and after the fact.
    for file in (tmp_path / "engine/evaluations").iterdir():
        file.unlink()
    files = evaluate_run(tmp_path / "engine")
    assert [read_evaluation(file).texts for file in files] == [learner[0].texts, learner[2].texts]


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("{name: server, url: 'http://localhost:1'}", "goes on serving the model"),
        ("{name: hf, batch: 7}", "has no setting 'batch'"),
        ("{name: nothing}", "unknown generation back-end"),
    ],
)
def test_an_engine_that_cannot_answer_is_refused_before_training(
    small_job, small_pool, tmp_path, engine, words
):
    with pytest.raises(ConfigError, match=words):
        train(job(small_job, ("evaluation.generation", engine)), small_pool, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_objective_parameter_is_named_with_file_and_line(small_job, small_pool, tmp_path):
    config = job(small_job, ("objective.betta", "0.1"))
    with pytest.raises(ConfigError, match=r"small job é.yaml:\d+: objective: .*beta"):
        train(config, small_pool, tmp_path / "run")


def test_a_users_own_logger_gets_every_update(small_job, small_pool, tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    config = job(small_job, ("train.max_updates", "2"), ("evaluation.problems", "null"))
    logger = CSVLogger(tmp_path, name="csv", flush_logs_every_n_steps=1)
    train(config, small_pool, tmp_path / "run", loggers=[logger])
    text = (tmp_path / "csv/version_0/metrics.csv").read_text()
    assert "drift/abs_log_ratio" in text
    assert len(text.strip().splitlines()) == 3
