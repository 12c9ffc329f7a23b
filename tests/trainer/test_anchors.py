"""Two anchors with two schedules, and the initial policy's log-probs kept between runs."""

import pytest
import torch
from safetensors.torch import load_file

from offline_rlvr.cache import Cache, cache_folder
from offline_rlvr.config import load_config
from offline_rlvr.policy.load import load_policy, load_weights
from offline_rlvr.pool import Pool
from offline_rlvr.stream import Plan, read_rows
from offline_rlvr.stream.data import UpdateData
from offline_rlvr.trainer.initial_scores import InitialScores
from offline_rlvr.trainer.run import train

#: grpo_tis reads both anchors; 20 updates of one group: old blocks 1-8, 9-16, 17-20.
TWO_ANCHORS = [
    ("objective", "{name: grpo_tis}"),
    ("old.refresh_every", "8"),
    ("train.groups_per_update", "1"),
    ("train.max_updates", "20"),
    ("train.checkpoint_every", "8"),
    ("train.learning_rate", "1e-3"),
    ("evaluation.problems", "null"),
]
LORA = [("model.lora", "{rank: 4, alpha: 8}"), ("train.learning_rate", "1e-2")]


def tables(run):
    return {path.stem: load_file(path) for path in (run / "anchors").iterdir()}


def same(one, two, updates):
    return all(torch.equal(one[f"{u:06d}"], two[f"{u:06d}"]) for u in updates)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("reference_every", ["16", "null"])
def test_old_and_reference_keep_their_own_schedules(
    small_job, small_pool, tmp_path, lora, reference_every
):
    overrides = [
        *TWO_ANCHORS,
        ("reference.refresh_every", reference_every),
        *(LORA if lora else []),
    ]
    run = tmp_path / "run"
    train(load_config(small_job, overrides), small_pool, run)
    found = tables(run)
    # Kept: what the present window and the two kept checkpoints (updates 16 and 20) need.
    second = {"reference-000017"} if reference_every == "16" else set()
    assert found.keys() == {"reference-000001", "old-000009", "old-000017"} | second
    reference, old = found["reference-000001"], found["old-000009"]
    assert len(reference) == (16 if second else 20)
    assert not same(old, reference, range(9, 17))
    if second:  # both were refreshed before update 17, by the same learner
        assert same(found["old-000017"], found["reference-000017"], range(17, 21))
    zero = [row["update"] for row in read_rows(run / "metrics.jsonl") if row["reference/k3"] == 0]
    assert zero == ([1, 17] if second else [1])
    scored = scores_of_checkpoint(run, small_pool, 16, lora, range(17, 21))
    assert same(found["old-000017"], scored, range(17, 21))


def scores_of_checkpoint(run, pool_path, update, lora, updates):
    """The learner after `update`, scoring minibatches to come, by way of its checkpoint."""
    settings = {"rank": 4, "alpha": 8} if lora else None
    policy = load_policy("builtin", device="cpu", lora=settings)
    load_weights(policy, run / f"checkpoints/update-{update:06d}/model")
    pool = Pool.open(pool_path)
    data = UpdateData(pool, Plan.load(run / "plan.parquet"))
    with torch.no_grad():
        return {f"{u:06d}": policy.score(data[u - 1][1]).logprobs for u in updates}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFLINE_RLVR_CACHE", str(tmp_path / "cache"))
    return cache_folder("initial-scores")


FIXED = [
    ("objective", "{name: grpo}"),
    ("reference.refresh_every", "null"),
    ("evaluation.problems", "null"),
]


def numbers(run):
    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in read_rows(run / "metrics.jsonl")
    ]


def test_a_fixed_reference_is_scored_once_for_all_runs(
    small_job, small_pool, tmp_path, cache, capsys
):
    config = load_config(small_job, FIXED)
    train(config, small_pool, tmp_path / "one")
    (table,) = cache.iterdir()
    assert "reused" not in capsys.readouterr().out
    train(config, small_pool, tmp_path / "two")
    assert f"reused from {table}" in capsys.readouterr().out
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")
    # another objective with the same window takes the same table, another precision does not
    train(
        load_config(small_job, [*FIXED, ("objective", "{name: agro}")]), small_pool, tmp_path / "3"
    )
    assert list(cache.iterdir()) == [table]
    budget = ("train.micro_batch_tokens", "300")
    train(load_config(small_job, [*FIXED, budget]), small_pool, tmp_path / "4")
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_table_is_reported_and_made_again(
    small_job, small_pool, tmp_path, cache, capsys, damage
):
    config = load_config(small_job, FIXED)
    train(config, small_pool, tmp_path / "one")
    (table,) = cache.iterdir()
    whole = bytearray(table.read_bytes())
    changed = {"cut": whole[:-1], "empty": b""}.get(damage)
    if changed is None:
        changed = whole.copy()
        changed[len(whole) // 2] ^= 1
    table.write_bytes(changed)
    train(config, small_pool, tmp_path / "two")
    assert "is damaged and is made again" in capsys.readouterr().out
    assert table.read_bytes() == whole
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


def test_a_cache_that_cannot_be_written_is_told_and_stops_nothing(
    small_job, small_pool, tmp_path, monkeypatch, capsys
):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv("OFFLINE_RLVR_CACHE", str(blocked))
    config = load_config(small_job, [*FIXED, ("train.max_updates", "1")])
    train(config, small_pool, tmp_path / "run")
    assert "are not kept for other runs" in capsys.readouterr().out


def test_the_key_tells_windows_and_facts_apart(tmp_path):
    made = []
    cache = Cache(tmp_path, "tables", lambda line: None)

    def scores(facts, updates):
        def make():
            made.append(updates)
            return b"table"

        InitialScores(facts, cache).get(updates, make)

    for _ in range(2):
        for facts in ({"pool": "a"}, {"pool": "b"}):
            for updates in (range(1, 3), range(1, 4)):
                scores(facts, updates)
    assert len(made) == 4
