"""A run for others: its card, its hub repository, its cost, and its results in other formats."""

import importlib.util
import json
import re
import shutil

import numpy as np
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from offline_rlvr.config import load_config
from offline_rlvr.errors import BusyError, ConfigError, DataError, ResourceError
from offline_rlvr.evaluation import best_update, read_evaluations
from offline_rlvr.lock import WriterLock
from offline_rlvr.pool.timing import FILE_NAME, Timing, add_timing, read_timing
from offline_rlvr.publish.card import render
from offline_rlvr.publish.cost import RunCost, format_costs
from offline_rlvr.publish.export import export
from offline_rlvr.publish.hub import push
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train


@pytest.fixture(scope="module")
def finished(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run é"
    train(load_config(small_job), small_pool, path)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run é")


def test_the_card_says_what_a_reader_must_know(finished):
    card = render(finished, "lab/pool")
    front, text = card.split("---\n")[1:3]
    facts = yaml.safe_load(front)
    assert facts["library_name"] == "transformers"
    assert facts["datasets"] == ["lab/pool"]
    assert "base_model" not in facts  # the built-in model is not on the hub
    identity = json.loads((finished / "run.json").read_text())
    last = list(read_rows(finished / "metrics.jsonl"))[-1]
    before, after = read_evaluations(finished)
    for part in (
        "base model: builtin",
        f"lab/pool, commit {identity['pool']['commit']}, hash {identity['pool']['hash']}",
        "| objective.name | ggpo |",
        "| objective.beta | 1.0 |",
        "hold 24 of",
        "each exactly once, in plan order",
        f"| drift/abs_log_ratio | {last['drift/abs_log_ratio']:.3g} |",
        f"{100 * before.summary()['mean@4']['value']:.1f} % | "
        f"{100 * after.summary()['mean@4']['value']:.1f} %",
        "95 % interval [",
        f"| torch | {identity['versions']['torch']} |",
    ):
        assert part in text, part


def test_what_is_pushed_is_a_model_with_its_record(run, tmp_path, hub, api):
    commit = push(run, "lab/run", api=api)
    assert hub.repositories["lab/run"]["private"] is True
    files = hub.files("lab/run")
    assert hub.repositories["lab/run"]["branches"]["main"] == commit
    assert not [name for name in files if "optimizer" in name]
    for name in ("config.yaml", "run.json", "plan.parquet", "metrics.jsonl", "ledger.jsonl"):
        assert files[f"run/{name}"] == (run / name).read_bytes()
    assert files["README.md"].decode() == render(run)
    for name, data in files.items():
        place = tmp_path / "pulled" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "pulled")
    trained = AutoModelForCausalLM.from_pretrained(run / "checkpoints/update-000006/model")
    for (name, ours), theirs in zip(model.named_parameters(), trained.parameters(), strict=True):
        assert ours.equal(theirs), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "pulled")
    ids = tokenizer("3 + 4")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "3 + 4"


def test_a_push_again_replaces_what_an_earlier_one_left(run, hub, api):
    push(run, "lab/run", private=False, api=api)
    assert hub.repositories["lab/run"]["private"] is False
    theirs = {"notes.md": b"kept", "adapter_model.safetensors": b"of another run"}
    hub.commit("lab/run", "main", hub.files("lab/run") | theirs)
    push(run, "lab/run", api=api)
    assert hub.files("lab/run")["notes.md"] == b"kept"
    assert "adapter_model.safetensors" not in hub.files("lab/run")
    push(run, "lab/run", revision="draft", api=api)
    assert {"main", "draft"} == hub.repositories["lab/run"]["branches"].keys()


def test_the_best_checkpoint_is_pushed_where_it_was_kept(
    run, small_job, small_pool, tmp_path, hub, api
):
    settings = {
        "train.keep_best": "true",
        "train.keep_checkpoints": "1",
        "train.learning_rate": "1e-2",  # soon worse
        "evaluation.every": "2",
    }
    own = tmp_path / "best"
    train(load_config(small_job, list(settings.items())), small_pool, own)
    push(own, "lab/best", best=True, api=api)
    update, _ = best_update(read_evaluations(own))
    assert update < 6
    files = hub.files("lab/best")
    weights = own / f"checkpoints/update-{update:06d}/model/model.safetensors"
    assert files["model.safetensors"] == weights.read_bytes()
    assert f"- weights: after update {update} (best held-out" in files["README.md"].decode()
    for path in (run / "evaluations").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="no checkpoint of its best"):
        push(run, "lab/run", best=True, api=api)


def test_an_adapter_is_pushed_as_one(small_job, small_pool, tmp_path, hub, api):
    from peft import PeftModel

    from offline_rlvr.generation.pretrained import load_model

    settings = [("model.lora", "{rank: 2}"), ("train.max_updates", "3")]
    config = load_config(small_job, [*settings, ("evaluation.problems", "null")])
    train(config, small_pool, tmp_path / "run")
    push(tmp_path / "run", "lab/adapter", api=api)
    files = hub.files("lab/adapter")
    assert b"library_name: peft" in files["README.md"]
    assert "model.safetensors" not in files
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(files[name])
    base = load_model("builtin", None, "float32", "cpu")
    PeftModel.from_pretrained(base, str(tmp_path))


def test_refusals(run, tmp_path, hub, api):
    from huggingface_hub import HfApi

    with pytest.raises(ConfigError, match="cannot name a repository"):
        push(run, "a/b/c", api=api)
    with pytest.raises(ConfigError, match="refuses lab/run"):
        push(run, "lab/run", api=HfApi(endpoint=hub.url, token=False))
    with pytest.raises(ResourceError, match="the hub cannot be used"):
        push(run, "lab/run", api=HfApi(endpoint="http://127.0.0.1:9", token=hub.token))
    lock = WriterLock(run)
    with pytest.raises(BusyError):
        push(run, "lab/run", api=api)
    lock.release()
    weights = run / "checkpoints/update-000006/model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged"):
        push(run, "lab/run", api=api)
    assert "lab/run" not in hub.repositories
    with pytest.raises(DataError, match="is not a run"):
        push(tmp_path / "none", "lab/run", api=api)


def test_the_cost_of_a_pool_is_shared_by_its_runs(finished, small_pool, tmp_path):
    cost = RunCost.of(finished)
    ledger = list(read_rows(finished / "ledger.jsonl"))
    timing = read_timing([small_pool])
    assert cost.trained_tokens == sum(row["tokens"] for row in ledger)
    assert timing.tokens == cost.sampled_tokens > cost.trained_tokens
    assert cost.sampling_hours == pytest.approx(timing.seconds / 3600)
    updates = [row["time/update_s"] for row in read_rows(finished / "metrics.jsonl")]
    assert cost.training_hours == pytest.approx(sum(updates) / 3600)
    lengths = [e.lengths.sum() for e in read_evaluations(finished)]
    assert cost.evaluation_tokens == np.sum(lengths)
    one, two = format_costs([cost]), format_costs([cost, cost])
    assert one[0].endswith("shared by 1 run")
    assert two[0].endswith("shared by 2 runs")
    assert len(two) == 1 + 1 + 2


def test_times_of_a_pool(own_pool):
    (own_pool / FILE_NAME).unlink()
    for _ in range(2):
        add_timing(own_pool, Timing(2, 30, 1.5))
    assert read_timing([own_pool]) == Timing(4, 60, 3.0)
    with (own_pool / FILE_NAME).open("a") as file:
        file.write('{"gro')
    with pytest.raises(DataError, match=r"timing.jsonl:3"):
        read_timing([own_pool])
    (own_pool / FILE_NAME).unlink()
    assert read_timing([own_pool]) == Timing()


def test_lighteval_results_and_details(finished, tmp_path):
    import pyarrow.parquet as pq

    files = export(finished, tmp_path, "lighteval")
    assert all(file.is_file() for file in files)
    before, after = read_evaluations(finished)
    (path,) = (tmp_path / "results/run é-update-000006").glob("results_*.json")
    results = json.loads(path.read_text())["results"]["arithmetic|0"]
    assert results["avg@n:n=4"] == pytest.approx(after.summary()["mean@4"]["value"])
    assert results["pass@k:k=2&n=4"] == pytest.approx(after.summary()["pass@2"]["value"])
    (path,) = (tmp_path / "details/run é-update-000000").glob("*/details_arithmetic|0_*.parquet")
    rows = pq.read_table(path).to_pylist()
    assert [row["doc"]["query"] for row in rows] == list(before.questions)
    assert [tuple(row["model_response"]["text"]) for row in rows] == list(before.texts)
    assert [row["metric"]["avg@n:n=4"] for row in rows] == list(before.means().values())


def test_inspect_logs(finished, tmp_path):
    files = export(finished, tmp_path, "inspect")
    _, after = read_evaluations(finished)
    assert len(files) == 2
    assert export(finished, tmp_path, "inspect") == files
    log = json.loads(files[1].read_text())
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(
        float(np.nanmean(after.rewards))
    )
    rewards = [sample["scores"]["math_verify"]["value"] for sample in log["samples"]]
    assert rewards == after.rewards.ravel().tolist()


@pytest.mark.skipif(importlib.util.find_spec("inspect_ai") is None, reason="pip install inspect-ai")
@pytest.mark.filterwarnings("ignore")
def test_inspect_reads_its_logs(finished, tmp_path):
    from inspect_ai.log import list_eval_logs, read_eval_log

    export(finished, tmp_path, "inspect")
    logs = [read_eval_log(info) for info in list_eval_logs(str(tmp_path))]
    assert len(logs) == 2
    for log in logs:
        assert (log.status, log.eval.task, log.eval.config.epochs) == ("success", "arithmetic", 4)
        assert len(log.samples) == 5 * 4
        assert log.samples[0].output.completion == log.samples[0].messages[-1].text


def test_export_refusals(run, tmp_path):
    with pytest.raises(ConfigError, match="allowed: inspect, lighteval"):
        export(run, tmp_path / "x", "helm")
    shutil.rmtree(run / "evaluations")
    with pytest.raises(DataError, match="has no evaluations"):
        export(run, tmp_path / "x", "inspect")


def test_the_verbs(finished, tmp_path, command):
    code, output = command("run", "card", finished)
    assert (code, output.strip()) == (0, render(finished).strip())
    code, output = command("run", "cost", finished)
    assert (code, "shared by 1 run" in output) == (0, True), output
    code, output = command("run", "export", finished, tmp_path / "logs", "--format", "inspect")
    assert (code, len(output.splitlines())) == (0, 2), output
    code, output = command("run", "push", finished, "lab/run")
    assert (code, "HF_HUB_OFFLINE" in output) == (5, True), output
    assert re.search(r"sampled in .* tokens/s", command("pool", "stats", run_pool(finished))[1])


def run_pool(path):
    return json.loads((path / "run.json").read_text())["pool"]["path"]
