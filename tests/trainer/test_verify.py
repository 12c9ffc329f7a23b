"""`run verify` fails on every way in which files of a run no longer fit each other."""

import hashlib
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import OfflineRlvrError
from offline_rlvr.pool.commits import seal
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.verify import verify_run

NEWEST = "checkpoints/update-000005"


@pytest.fixture(scope="module")
def stopped(small_job, small_pool, tmp_path_factory):
    """Five updates, a checkpoint at 2, 4 and 5; once fallen back to 4, so one line is discarded."""
    path = tmp_path_factory.mktemp("runs") / "run"
    overrides = [("evaluation.problems", "null"), ("train.max_updates", "5")]
    config = load_config(small_job, [*overrides, ("train.keep_checkpoints", "3")])
    train(config, small_pool, path)
    shutil.rmtree(path / NEWEST)
    train(config, small_pool, path)
    return path


def lines(change):
    def tamper(run):
        path = run / "ledger.jsonl"
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return tamper


def ledger_row(change):
    """Changes the third line."""

    def tamper(found):
        row = json.loads(found[2])
        change(row)
        return [*found[:2], json.dumps(row) + "\n", *found[3:]]

    return lines(tamper)


def facts(change, forged=True):
    """Changes run.json; `forged`: with the checksum that fits it."""

    def tamper(run):
        body = json.loads((run / "run.json").read_text())
        change(body)
        if forged:
            del body["checksum"]
        data = seal(body) if forged else json.dumps(body).encode()
        (run / "run.json").write_bytes(data)

    return tamper


def plan(change):
    def tamper(run):
        table = pq.read_table(run / "plan.parquet")
        rows = table.column("group_id").to_pylist()
        change(rows)
        at = table.column_names.index("group_id")
        table = table.set_column(at, "group_id", pa.array(rows, pa.int64()))
        pq.write_table(table, run / "plan.parquet")

    return tamper


def responses(change):
    def tamper(run):
        path = run / "responses/updates-000003-000004.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return tamper


def checkpoint(name, change, forged=False):
    """Changes a file of the newest checkpoint; `forged`: with the manifest that fits it."""

    def tamper(run):
        path = run / NEWEST / name
        path.write_bytes(change(path.read_bytes()))
        if forged:
            from offline_rlvr.durable import file_sha256

            manifest = json.loads((run / NEWEST / "MANIFEST.json").read_text())
            manifest[name] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
            (run / NEWEST / "MANIFEST.json").write_text(json.dumps(manifest))

    return tamper


def state(**changes):
    """Changes the state of the newest checkpoint, with the manifest that fits it."""
    name = "state.json"
    return checkpoint(
        name, lambda data: json.dumps({**json.loads(data), **changes}).encode(), forged=True
    )


def flip(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def discarded_back(run):
    late = (run / "ledger.discarded.jsonl").read_text()
    with (run / "ledger.jsonl").open("a") as file:
        file.write(late)


def discarded_instead(run):
    """Of the same update, by another attempt: told apart by its loss."""
    late = json.loads((run / "ledger.discarded.jsonl").read_text()) | {"loss": 0.5}
    kept = (run / "ledger.jsonl").read_text().splitlines(keepends=True)[:-1]
    (run / "ledger.jsonl").write_text("".join([*kept, json.dumps(late) + "\n"]))


def stray(run):
    (run / NEWEST / "model/pytorch_model.bin").write_bytes(b"")


def older_state(run):
    name = "checkpoints/update-000004"
    shutil.rmtree(run / NEWEST)
    shutil.copytree(run / name, run / NEWEST)


TAMPERED = {
    "a line dropped": (lines(lambda found: [*found[:2], *found[3:]]), "update 4 where update 3"),
    "the last line dropped": (lines(lambda found: found[:-1]), "ends at update 4"),
    "all lines dropped": (lambda run: (run / "ledger.jsonl").unlink(), "ends at update 0"),
    "a line doubled": (lines(lambda found: [*found[:3], *found[2:]]), "update 3 where update 4"),
    "lines reordered": (
        lines(lambda found: [found[1], found[0], *found[2:]]),
        "update 2 where update 1",
    ),
    "a line too many": (
        lines(lambda found: [*found, found[-1].replace('"update": 5', '"update": 7')]),
        "update 7 where update 6",
    ),
    "other groups": (
        ledger_row(lambda row: row["group_ids"].reverse()),
        "update 3 did not train the groups of the plan",
    ),
    "no groups": (ledger_row(lambda row: row.pop("group_ids")), "did not train the groups"),
    "other tokens": (ledger_row(lambda row: row.update(tokens=1)), "updates 1 to 5"),
    "another loss": (ledger_row(lambda row: row.update(loss=0.0)), "updates 1 to 5"),
    "discarded lines put back": (discarded_back, "update 5 where update 6"),
    "a discarded line instead": (discarded_instead, "updates 1 to 5"),
    "the plan's order changed": (plan(lambda rows: rows.reverse()), "plan.parquet"),
    "a group of the plan doubled": (plan(lambda rows: rows.__setitem__(0, rows[1])), "each group"),
    "a group of the plan unknown": (plan(lambda rows: rows.__setitem__(0, 9999)), "plan.parquet"),
    "the plan cut": (
        lambda run: (run / "plan.parquet").write_bytes((run / "plan.parquet").read_bytes()[:-9]),
        "plan.parquet",
    ),
    "run.json edited": (
        facts(lambda body: body.update(name="other"), forged=False),
        "run.json is damaged",
    ),
    "run.json: another plan": (
        facts(lambda body: body["plan"].update(hash="0" * 64)),
        "not the plan that run.json names",
    ),
    "run.json: another pool": (
        facts(lambda body: body["pool"].update(hash="0" * 64)),
        "not the plan that run.json names",
    ),
    "run.json: another seed": (
        facts(lambda body: body["settings"].update({"train.seed": 9})),
        "train.seed: 9 -> 0",
    ),
    "run.json: another learning rate": (
        facts(lambda body: body["settings"].update({"train.learning_rate": 9})),
        "train.learning_rate",
    ),
    "run.json: a plan that is none": (
        facts(lambda body: body.update(plan=3)),
        "run.json is damaged: plan is not an object",
    ),
    "run.json: updates that are no number": (
        facts(lambda body: body["plan"].update(updates="3")),
        "plan.updates is not int",
    ),
    "run.json missing": (lambda run: (run / "run.json").unlink(), "is not a run"),
    "the plan missing": (
        lambda run: (run / "plan.parquet").unlink(),
        "plan.parquet is missing or not a file",
    ),
    "config.yaml edited": (
        lambda run: (run / "config.yaml").write_text(
            (run / "config.yaml")
            .read_text()
            .replace("groups_per_update: 4", "groups_per_update: 5")
        ),
        "train.groups_per_update: 4 -> 5",
    ),
    "the checkpoint's update": (state(applied=4), "state.json is of update 4"),
    "the checkpoint's ledger": (state(ledger="0" * 64), "updates 1 to 5"),
    "a checkpoint without a ledger": (state(ledger=None), "does not say which ledger lines"),
    "a checkpoint without anchors": (state(anchors=[]), "does not say which ledger lines"),
    "no checkpoint": (
        lambda run: shutil.rmtree(run / "checkpoints"),
        "has no checkpoint yet",
    ),
    "the checkpoint of another update": (older_state, "state.json is of update 4"),
    "weights changed": (
        checkpoint("model/model.safetensors", flip),
        "model.safetensors is damaged",
    ),
    "optimizer changed": (checkpoint("optimizer.pt", flip), "optimizer.pt is damaged"),
    "a file too many": (stray, "pytorch_model.bin is not in MANIFEST.json"),
    "a file missing": (
        lambda run: (run / NEWEST / "model/config.json").unlink(),
        "model/config.json is missing",
    ),
    "an anchor changed": (
        lambda run: [p.write_bytes(flip(p.read_bytes())) for p in (run / "anchors").iterdir()],
        "is not the reference table",
    ),
    "an anchor missing": (lambda run: shutil.rmtree(run / "anchors"), "reference table"),
    "a metrics line dropped": (
        lambda run: (run / "metrics.jsonl").write_text(
            "".join((run / "metrics.jsonl").read_text().splitlines(keepends=True)[1:])
        ),
        "metrics.jsonl does not hold updates 1 to 5",
    ),
    "a response dropped": (responses(lambda table: table.slice(1)), "exactly once"),
    "a response doubled": (
        responses(lambda table: pa.concat_tables([table, table.slice(0, 1)])),
        "exactly once",
    ),
    "a response file missing": (
        lambda run: next((run / "responses").iterdir()).unlink(),
        "exactly once",
    ),
    "no responses": (lambda run: shutil.rmtree(run / "responses"), "cannot be read"),
}


def test_an_honest_run_is_proven(stopped):
    assert "the weights of update 5 of" in verify_run(stopped)


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_noticed(stopped, tmp_path, name):
    tamper, words = TAMPERED[name]
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    tamper(run)
    with pytest.raises(OfflineRlvrError) as caught:
        verify_run(run)
    assert words in caught.value.message
    assert caught.value.exit_code in (2, 3)


def test_work_that_no_checkpoint_holds_yet_is_no_fault(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    shutil.rmtree(run / NEWEST)
    assert "the weights of update 4 of" in verify_run(run)


def test_a_checkpoint_that_is_replaced_meanwhile_is_no_fault(stopped, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    digest = hashlib.file_digest

    def replaced(file, name):
        monkeypatch.undo()
        shutil.rmtree(run / NEWEST)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", replaced)
    assert "the weights of update 4 of" in verify_run(run)
