"""A run folder made to do harm: nothing runs, nothing outside is read, nothing steers a terminal.

Pools are in `test_hostile_files.py`. Manifests and seals fit the forged files: whoever forges a run
computes those anew.
"""

import json
import os
import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.durable import file_sha256
from offline_rlvr.errors import DataError
from offline_rlvr.pool.commits import seal
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.run import train

EVIL = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e<script>alert(1)</script><img src=x onerror=alert(1)>"
NEWEST = "checkpoints/update-000004"
LATER = ("--train.max_updates", "6")


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture(scope="module")
def finished(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    overrides = [("train.max_updates", "4"), ("reference.refresh_every", "2")]
    train(load_config(small_job, overrides), small_pool, path)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "runs/run"))


@pytest.fixture
def canary(tmp_path):
    path = tmp_path / "executed"
    yield path
    assert not path.exists(), "code of the run folder was executed"


@pytest.fixture
def looked_at(cli, run, small_job, small_pool, monkeypatch):
    """Everything that reads a run; none may end in a traceback."""

    def look():
        monkeypatch.chdir(run)
        outputs = []
        commands = [["run", verb, run] for verb in ("status", "tail", "verify")]
        commands += [["run", "list", run.parent], ["report", run], ["evaluate", run]]
        for arguments in (*commands, ["resume", run, *LATER]):
            code, output = cli(*arguments)
            assert code in (0, 2, 3, 4), (arguments, output)
            assert "Traceback" not in output, (arguments, output)
            assert all(c.isprintable() or c in "\n\t" for c in output), (arguments, output)
            outputs.append(output)
        return outputs

    return look


def seal_checkpoint(folder, **more):
    """A manifest that fits what lies there, with more entries."""
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "MANIFEST.json"
    }
    (folder / "MANIFEST.json").write_text(json.dumps({**files, **more}))


def test_a_pickle_as_optimizer(run, canary, looked_at):
    (run / NEWEST / "optimizer.pt").write_bytes(pickle.dumps(Bomb(canary), protocol=2))
    seal_checkpoint(run / NEWEST)
    assert "optimizer.pt holds no optimizer state" in looked_at()[-1]


def test_a_torch_file_with_a_pickle_as_optimizer(run, canary, looked_at):
    import torch

    torch.save(
        {"optimizer_states": Bomb(canary), "lr_schedulers": []}, run / NEWEST / "optimizer.pt"
    )
    seal_checkpoint(run / NEWEST)
    assert "optimizer.pt holds no optimizer state" in looked_at()[-1]


def test_code_that_comes_with_the_model(run, canary, looked_at):
    code = f"open({str(canary)!r}, 'w')\n"
    model = run / NEWEST / "model"
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py"):
        (model / name).write_text(code + "class Evil: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        facts = json.loads((model / name).read_text())
        kinds = {
            "AutoConfig": "configuration_evil.Evil",
            "AutoModelForCausalLM": "modeling_evil.Evil",
        }
        facts["auto_map"] = {**kinds, "AutoTokenizer": ["tokenization_evil.Evil", None]}
        (model / name).write_text(json.dumps(facts))
    for folder in (run, run / "checkpoints", model):
        for name in ("conftest.py", "sitecustomize.py", "torch.py", "peft.py"):
            (folder / name).write_text(code)
    seal_checkpoint(run / NEWEST)
    looked_at()


def test_pickled_weights_beside_or_instead_of_safetensors(run, canary, looked_at):
    model = run / NEWEST / "model"
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(canary)))
    seal_checkpoint(run / NEWEST)
    looked_at()
    (model / "model.safetensors").unlink()
    seal_checkpoint(run / NEWEST)
    looked_at()


def test_extension_types_in_tables(run, canary, looked_at):
    kind = {b"ARROW:extension:name": b"arrow.py_extension_type"}
    kind[b"ARROW:extension:metadata"] = pickle.dumps(Bomb(canary))
    for path in (*run.glob("responses/*"), *run.glob("evaluations/*"), run / "plan.parquet"):
        table = pq.read_table(path)
        fields = [field.with_metadata(kind) for field in table.schema]
        pq.write_table(table.cast(pa.schema(fields, table.schema.metadata)), path)
    looked_at()


@pytest.mark.parametrize("name", ["../secret", "model/../../secret", "/etc/hostname", "model", ""])
def test_a_manifest_that_points_elsewhere(run, name):
    (run / "checkpoints/secret").write_text("s")
    path = run / NEWEST / name
    size = path.stat().st_size
    digest = file_sha256(path) if path.is_file() else ""
    seal_checkpoint(run / NEWEST, **{name: {"bytes": size, "sha256": digest}})
    with pytest.raises(DataError, match="is missing"):
        checkpoints.verify(run / NEWEST)


@pytest.mark.parametrize("name", ["optimizer.pt", "model", "MANIFEST.json", "."])
def test_a_link_in_a_checkpoint(run, tmp_path, name):
    path = run / NEWEST / name if name != "." else run / NEWEST
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        checkpoints.verify(run / NEWEST)


@pytest.mark.parametrize(
    "name", ["run.json", "ledger.jsonl", "metrics.jsonl", "config.yaml", ".lock-owner.json"]
)
def test_something_else_than_a_file_never_blocks(run, looked_at, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    looked_at()


@pytest.mark.parametrize("name", ["optimizer.pt", "MANIFEST.json", "state.json"])
def test_a_pipe_in_a_checkpoint_never_blocks(run, looked_at, name):
    (run / NEWEST / name).unlink()
    os.mkfifo(run / NEWEST / name)
    assert "neither a file nor a folder" in "".join(looked_at())


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", '{"applied": "x"}'])
@pytest.mark.parametrize("name", ["run.json", f"{NEWEST}/state.json", f"{NEWEST}/MANIFEST.json"])
def test_json_of_another_shape(run, cli, name, text):
    (run / name).write_text(text)
    if name.endswith("state.json"):
        seal_checkpoint(run / NEWEST)
    for arguments in (["run", "verify", run], ["resume", run, *LATER]):
        code, output = cli(*arguments)
        assert (code, "Traceback" in output) in ((3, False), (0, False)), output
    assert code == (3 if name == "run.json" else 0), "the checkpoint before is used"


def test_escapes_and_markup_are_shown_and_do_nothing(run, looked_at):
    facts = json.loads((run / "run.json").read_text())
    del facts["checksum"]
    for part, key in (("model", "name_or_path"), ("objective", "name"), ("pool", "path")):
        facts[part][key] = EVIL
    facts["name"] = EVIL
    facts["objective"][EVIL] = EVIL
    (run / "run.json").write_bytes(seal(facts))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row[EVIL] = 1.0
        row["train/loss"] = EVIL
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = next((run / "evaluations").iterdir())
    table = pq.read_table(evaluation)
    for name in ("texts", "statuses"):
        values = [[EVIL] * len(row) for row in table.column(name).to_pylist()]
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    metadata = {**table.schema.metadata, b"offline_rlvr.name": EVIL.encode()}
    pq.write_table(table.replace_schema_metadata(metadata), evaluation)
    run.rename(run.with_name("run\x1b[2J"))
    run.with_name("run\x1b[2J").rename(run)
    looked_at()
    page = run / "report.html"
    assert not page.exists() or "<script>alert" not in page.read_text()
