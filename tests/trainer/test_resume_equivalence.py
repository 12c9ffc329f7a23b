"""Stopped after any update, by a crash or politely, a run ends in the state of an undisturbed one.

All of it: every byte of the last checkpoint (weights, optimizer, scheduler, metric windows, which
anchors and which ledger lines), the anchor tables, the ledger, the metrics and the response rows.
"""

import os
import signal

import pyarrow.parquet as pq
import pytest
from lightning.pytorch.loggers import CSVLogger

from offline_rlvr.config import load_config
from offline_rlvr.errors import Interrupted
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

UPDATES = 6
#: Anchors are refreshed at 1 and 4; at 1, 3 and 5; the same by decision. Every second update has a
#: checkpoint.
JOBS = {
    "reference": [("objective", "{name: ggpo, beta: 1.0}"), ("reference.refresh_every", "3")],
    "old and reference": [
        ("objective", "{name: grpo_tis}"),
        ("old.refresh_every", "2"),
        ("reference.refresh_every", "3"),
    ],
    "acting": [
        ("objective", "{name: proximal_kl, horizon: adaptive, variance_bound: 100}"),
        ("reference.refresh_when", "{metric: reference/k3, above: 0, for: 1}"),
    ],
}


class Crash(Exception):
    """What nobody expects."""


class Stops(CSVLogger):
    """Ends the training as soon as it is told of an update; writes nothing."""

    def __init__(self, folder, update=0, how="crash"):
        super().__init__(folder)
        self.update, self.how = update, how

    def log_metrics(self, metrics, step=None):
        if step == self.update and self.how == "crash":
            raise Crash
        if step == self.update:
            os.kill(os.getpid(), self.how)

    def save(self):
        pass


@pytest.fixture(scope="module", params=JOBS)
def config(small_job, request):
    shared = [("evaluation.problems", "null"), ("train.warmup_updates", "3")]
    return load_config(small_job, [*shared, *JOBS[request.param]])


@pytest.fixture(scope="module")
def straight(config, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "straight"
    train(config, small_pool, path)
    return state(path)


def state(run):
    """Everything that must not depend on interruptions."""
    last = run / f"checkpoints/update-{UPDATES:06d}"
    anchors = checkpoints.read_state(last)["anchors"]
    tables = [f"anchors/{name}-{table['first']:06d}.safetensors" for name, table in anchors.items()]
    files = [path for path in sorted(last.rglob("*")) if path.is_file()]
    files += [run / table for table in tables] + [run / "plan.parquet", run / "config.yaml"]
    found = {str(path.relative_to(run)): path.read_bytes() for path in files}
    for name in ("ledger.jsonl", "metrics.jsonl"):
        found[name] = [
            {key: value for key, value in row.items() if key not in ("attempt", "time/update_s")}
            for row in read_rows(run / name)
        ]
    rows = pq.read_table(run / "responses").to_pylist()
    found["responses"] = sorted(
        rows, key=lambda row: (row["update"], row["group_id"], row["index"])
    )
    return found


@pytest.mark.parametrize("how", ["crash", signal.SIGTERM])
@pytest.mark.parametrize("update", range(1, UPDATES + 1))
def test_stopped_after_any_update(config, small_pool, straight, tmp_path, update, how):
    run = tmp_path / "run"
    polite = how != "crash"
    if polite and update == UPDATES:  # there is nothing left to stop
        train(config, small_pool, run, loggers=[Stops(tmp_path, update, how)])
    else:
        with pytest.raises(Interrupted if polite else Crash):
            train(config, small_pool, run, loggers=[Stops(tmp_path, update, how)])
        newest = checkpoints.newest(run / "checkpoints", print)
        saved = checkpoints.read_state(newest)["applied"] if newest else 0
        assert saved == (update if polite else (update - 1) // 2 * 2)
    train(config, small_pool, run, loggers=[Stops(tmp_path)])
    assert_same(state(run), straight)
    verify_run(run)
    train(config, small_pool, run, loggers=[Stops(tmp_path)])  # after the last
    assert_same(state(run), straight)


def test_stopped_after_every_update_of_one_run(config, small_pool, straight, tmp_path):
    run = tmp_path / "run"
    for update in range(1, UPDATES + 1):
        with pytest.raises(Crash):
            train(config, small_pool, run, loggers=[Stops(tmp_path, update)])
    train(config, small_pool, run, loggers=[Stops(tmp_path)])
    assert_same(state(run), straight)
    verify_run(run)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
