"""Curves in TensorBoard, W&B, MLflow, trackio and CSV: each update once, whatever ends a run."""

import csv
import importlib.util
import json
import struct

import lightning.pytorch as pl
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.evaluation import read_evaluations
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.loggers import Curves
from offline_rlvr.trainer.run import train

KEY = "drift/abs_log_ratio"
ACCURACY = "evaluation/arithmetic/mean_at_4"
#: Of W&B's files, in bytes.
BLOCK = 32768
#: What the libraries themselves warn about.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f'pip install "offline-rlvr[{package}]"')


class PowerCut(Exception):
    pass


class CutAfter(pl.Callback):
    """Ends a training after an update that no checkpoint holds."""

    def __init__(self, update):
        self.update = update

    def on_train_batch_end(self, trainer, module, *args):
        if module.applied == self.update:
            raise PowerCut


@pytest.fixture
def logged(small_job, small_pool, tmp_path):
    """Trains with a logger, is cut after update 5 of 6 (checkpoint at 4) and goes on."""

    def run(logger):
        config = load_config(small_job, [("logger", logger)])
        path = tmp_path / "run é"
        with pytest.raises(PowerCut):
            train(config, small_pool, path, callbacks=[CutAfter(5)])
        train(config, small_pool, path)
        discarded = list(read_rows(path / "ledger.discarded.jsonl"))
        assert [row["update"] for row in discarded] == [5]
        return path

    return run


def expected(path):
    """step -> value of both curves, as the run folder has them."""
    drift = {row["update"]: row[KEY] for row in read_rows(path / "metrics.jsonl")}
    accuracy = {e.update: e.summary()["mean@4"]["value"] for e in read_evaluations(path)}
    assert sorted(drift) == [1, 2, 3, 4, 5, 6]
    assert sorted(accuracy) == [0, 6]
    return drift, accuracy


def check(points, wanted):
    """Every step once, with its value."""
    assert sorted(step for step, _ in points) == sorted(wanted)
    assert dict(points) == pytest.approx(wanted, rel=1e-6)


def test_csv(logged):
    path = logged("{name: csv}")
    with (path / "csv/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    drift, accuracy = expected(path)
    check([(int(row["step"]), float(row[KEY])) for row in rows if row[KEY]], drift)
    check([(int(row["step"]), float(row[ACCURACY])) for row in rows if row[ACCURACY]], accuracy)
    assert "objective.name: ggpo" in (path / "csv/hparams.yaml").read_text()


@needs("tensorboard")
def test_tensorboard(logged):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = logged("{name: tensorboard}")
    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    drift, accuracy = expected(path)
    check([(event.step, event.value) for event in events.Scalars(KEY)], drift)
    check([(event.step, event.value) for event in events.Scalars(ACCURACY)], accuracy)
    assert "hp_metric" not in events.Tags()["scalars"]
    assert "objective.name: ggpo" in (path / "tensorboard/hparams.yaml").read_text()


@needs("wandb")
def test_wandb_offline(logged, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = logged("{name: wandb, offline: true, project: arithmetic}")
    (stored,) = (path / "wandb").glob("offline-run-*/*.wandb")
    records = list(wandb_records(stored))
    history = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
         for item in record.history.item}
        for record in records if record.HasField("history")
    ]  # fmt: skip
    drift, accuracy = expected(path)
    check([(row["trainer/global_step"], row[KEY]) for row in history if KEY in row], drift)
    points = [(row["trainer/global_step"], row[ACCURACY]) for row in history if ACCURACY in row]
    check(points, accuracy)
    (run,) = [record.run for record in records if record.HasField("run")][:1]
    assert (run.project, run.display_name) == ("arithmetic", "run é")
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.HasField("config") or record.HasField("run")
        for item in [*record.config.update, *record.run.config.update]
    }
    assert config["objective.name"] == "ggpo"
    assert config["train.groups_per_update"] == 4


def wandb_records(path):
    """The file is a log of records, cut to chunks with a header (crc, size, kind) in blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, []
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        size, kind = struct.unpack_from("<HB", data, position + 4)
        parts.append(data[position + 7 : position + 7 + size])
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


@needs("mlflow")
def test_mlflow_continues_its_run(logged, monkeypatch, tmp_path):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = logged("{name: mlflow, experiment_name: arithmetic}")
    client = MlflowClient(f"sqlite:///{path}/mlflow.db")
    experiment = client.get_experiment_by_name("arithmetic")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    drift, accuracy = expected(path)
    check([(m.step, m.value) for m in client.get_metric_history(run.info.run_id, KEY)], drift)
    points = client.get_metric_history(run.info.run_id, ACCURACY)
    check([(m.step, m.value) for m in points], accuracy)
    assert run.data.params["objective.name"] == "ggpo"


@needs("trackio")
def test_trackio_continues_its_run(logged, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    assert str(tmp_path / "trackio") == str(trackio.utils.TRACKIO_DIR)
    path = logged("{name: trackio, project: arithmetic, auto_log_cpu: false}")
    (run,) = trackio.Api().runs("arithmetic")
    assert run.name.startswith("run é-")
    rows = SQLiteStorage.get_logs("arithmetic", run.name)
    drift, accuracy = expected(path)
    check([(row["step"], row[KEY]) for row in rows if KEY in row], drift)
    check([(row["step"], row[ACCURACY]) for row in rows if ACCURACY in row], accuracy)
    assert run.config["objective.name"] == "ggpo"


def test_a_logger_that_is_added_later_has_the_whole_run(small_job, small_pool, tmp_path):
    short = load_config(small_job, [("train.max_updates", "3")])
    train(short, small_pool, tmp_path / "run")
    train(load_config(small_job, [("logger", "{name: csv}")]), small_pool, tmp_path / "run")
    with (tmp_path / "run/csv/metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row[KEY]]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("logger", "error", "says"),
    [
        ("{name: tensorbord}", ConfigError, "allowed: csv, tensorboard, wandb, mlflow, trackio"),
        ("{name: csv, color: red}", ConfigError, "does not take these settings"),
        ("{name: csv, save_dir: elsewhere}", ConfigError, "does not take these settings"),
    ],
)
def test_refusals(small_job, small_pool, tmp_path, logger, error, says):
    with pytest.raises(error, match=says):
        train(load_config(small_job, [("logger", logger)]), small_pool, tmp_path / "run")


def test_a_package_that_is_not_installed_is_named(small_job, small_pool, tmp_path):
    absent = [n for n in ("trackio", "mlflow", "wandb") if importlib.util.find_spec(n) is None]
    if not absent:
        pytest.skip("every logger's package is installed")
    config = load_config(small_job, [("logger", f"{{name: {absent[0]}}}")])
    with pytest.raises(ResourceError, match="not installed") as caught:
        train(config, small_pool, tmp_path / "run")
    assert caught.value.hint == f'pip install "offline-rlvr[{absent[0]}]"'


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 99_999, '{"mlflow": {}}', '{"mlflow": {"id": 1, "reached": [2]}}']
)
def test_a_damaged_record_of_what_a_service_was_given_is_told(small_job, tmp_path, text):
    (tmp_path / "loggers.json").write_text(text)
    config = load_config(small_job, [("logger", "{name: mlflow}")])
    with pytest.raises(DataError, match=r"loggers\.json is damaged") as caught:
        Curves.of_config(config, tmp_path)
    assert "remove it" in caught.value.hint
