"""A training that acts on its own metrics: it ends, refreshes its reference, adapts its horizon."""

import json
import shutil

import pytest
from lightning.pytorch.loggers import CSVLogger

from offline_rlvr.config import load_config
from offline_rlvr.durable import file_sha256
from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.evaluation import evaluation_path
from offline_rlvr.report.record import read_run
from offline_rlvr.report.verdict import missing
from offline_rlvr.stream import ledger_digest, read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.estimate import estimate
from offline_rlvr.trainer.evaluate import evaluate_run
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.status import RunStatus, describe
from offline_rlvr.trainer.verify import verify_run

NO_EVALUATION = ("evaluation.problems", "null")
#: Right after a refresh the divergence is exactly 0, then not: met by the third update of a window.
AWAY = "{metric: reference/k3, above: 0, for: 2}"
STOP = ("train.stop_when", AWAY)
FIXED = ("reference.refresh_every", "null")
KEEPING = ("train.keep_best", "true")
#: One checkpoint is there at a time, of the latest update.
EVERY_UPDATE = [
    ("train.keep_checkpoints", "1"),
    ("train.checkpoint_every", "1"),
    ("train.learning_rate", "1e-2"),  # soon worse
    ("evaluation.every", "1"),
    ("reference.refresh_every", "1"),
]
#: The horizon may double whenever that changes anything.
ADAPTIVE = ("objective", "{name: proximal_kl, horizon: adaptive, variance_bound: 100}")


class Crash(Exception):
    """What nobody expects."""


class Crashing(CSVLogger):
    """Ends the training as soon as it is told of an update; writes nothing."""

    def __init__(self, folder, update):
        super().__init__(folder)
        self.update = update

    def log_metrics(self, metrics, step=None):
        if step == self.update:
            raise Crash

    def save(self):
        pass


def job(small_job, *overrides):
    return load_config(small_job, [NO_EVALUATION, *overrides])


def decisions(run):
    return {row["update"]: row["decisions"] for row in ledger(run) if "decisions" in row}


def ledger(run):
    return list(read_rows(run / "ledger.jsonl"))


def metrics(run):
    return [
        {key: value for key, value in row.items() if key != "time/update_s"}
        for row in read_rows(run / "metrics.jsonl")
    ]


def state(run, update):
    """Everything in the checkpoint of an update, to the bit, and the ledger but its attempts."""
    folder = run / f"checkpoints/update-{update:06d}"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return found, metrics(run), [{**row, "attempt": None} for row in ledger(run)]


@pytest.fixture(scope="module")
def plain(small_job, small_pool, tmp_path_factory):
    """Six updates, the reference refreshed at 1 and 4."""
    path = tmp_path_factory.mktemp("runs") / "plain"
    train(job(small_job), small_pool, path)
    return path


@pytest.fixture(scope="module")
def ended(small_job, small_pool, tmp_path_factory):
    """Ended by its third update."""
    path = tmp_path_factory.mktemp("runs") / "ended"
    train(load_config(small_job, [STOP]), small_pool, path)
    return path


@pytest.fixture(scope="module")
def acting(small_job, small_pool, tmp_path_factory):
    """Reference and horizon change by decision; the weights are those of update 6."""
    path = tmp_path_factory.mktemp("runs") / "acting"
    early = ("reference.refresh_when", "{metric: reference/k3, above: 0, for: 1}")
    train(job(small_job, early, ADAPTIVE), small_pool, path)
    return path


def test_the_training_ends_where_its_condition_is_met(ended, plain):
    rows = metrics(ended)
    assert rows == metrics(plain)[:3]
    (decision,) = decisions(ended)[3]
    value = rows[2]["reference/k3"]
    terms = {"metric": "reference/k3", "above": 0.0, "for": 2}
    assert decision == {"decision": "stop", **terms, "value": value}
    assert list(decisions(ended)) == [3]
    assert checkpoints.read_state(ended / "checkpoints/update-000003")["applied"] == 3
    status = RunStatus.of(ended)
    assert (status.state, status.applied, status.asked, status.saved) == ("complete", 3, 6, 3)
    assert [update for update, _, _ in status.accuracy] == [0, 3]
    said = "\n".join(describe(status))
    assert "stopped by train.stop_when after update 3" in said
    assert "decision   after update 3, stop: metric reference/k3, above 0, for 2" in said
    assert "; stopped by train.stop_when (metric reference/k3" in verify_run(ended)
    (note,) = missing(read_run(ended))
    assert note.startswith("The run was stopped by train.stop_when after update 3 of ")


def test_the_same_command_says_so_and_trains_nothing(
    ended, small_job, small_pool, tmp_path, capsys
):
    run = shutil.copytree(ended, tmp_path / "run")
    before = state(run, 3)
    train(load_config(small_job, [STOP]), small_pool, run)
    said = capsys.readouterr().out
    assert "stopped by train.stop_when after update 3 of 6 (metric reference/k3" in said
    assert "change or remove train.stop_when to go on" in said
    assert "continuing" not in said
    assert state(run, 3) == before


@pytest.mark.parametrize("condition", ["null", "{metric: reference/k3, above: 1e9}"])
def test_without_the_condition_it_goes_on(ended, plain, small_pool, tmp_path, condition):
    run = shutil.copytree(ended, tmp_path / "run")
    config = load_config(run / "config.yaml", [("train.stop_when", condition)])
    train(config, small_pool, run)
    assert metrics(run) == metrics(plain)
    assert list(decisions(run)) == [3]
    assert RunStatus.of(run).state == "complete"
    assert verify_run(run).endswith("in plan order")


def test_a_condition_that_is_never_met_changes_nothing(plain, small_job, small_pool, tmp_path):
    never = ("train.stop_when", "{weights/ess: < -1}")
    train(job(small_job, never), small_pool, tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(plain)
    assert decisions(tmp_path / "run") == {}


@pytest.mark.parametrize("update", [1, 2, 3])
def test_a_crash_before_the_end_does_not_change_it(ended, small_job, small_pool, tmp_path, update):
    """The third update's ledger line holds the decision, and no checkpoint yet."""
    run = tmp_path / "run"
    with pytest.raises(Crash):
        train(load_config(small_job, [STOP]), small_pool, run, loggers=[Crashing(run, update)])
    assert RunStatus.of(run).state == "stopped"
    train(load_config(small_job, [STOP]), small_pool, run)
    assert state(run, 3) == state(ended, 3)
    verify_run(run)


def test_an_end_without_its_evaluation_is_made_up_for(ended, small_job, small_pool, tmp_path):
    run = shutil.copytree(ended, tmp_path / "run")
    files = sorted((run / "evaluations").glob("*-update-000003.parquet"))
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    train(load_config(small_job, [STOP]), small_pool, run)
    assert [file.read_bytes() for file in files] == before != []


def test_refreshed_by_decision_as_by_number(plain, small_job, small_pool, tmp_path):
    for name, every in (("instead", "null"), ("as well", "5")):
        run = tmp_path / name
        overrides = [("reference.refresh_when", AWAY), ("reference.refresh_every", every)]
        train(job(small_job, *overrides), small_pool, run)
        assert metrics(run) == metrics(plain)
        assert [row["decision"] for row in decisions(run)[3]] == ["refresh_reference"]
        assert list(decisions(run)) == [3, 6]
        weights = "checkpoints/update-000006/model/model.safetensors"
        assert (run / weights).read_bytes() == (plain / weights).read_bytes()
        verify_run(run)


def test_refresh_and_horizon_change_what_is_trained(acting):
    assert list(decisions(acting)) == [2, 4, 6]  # of every refreshed reference the second update
    zero = [row["update"] for row in metrics(acting) if row["reference/k3"] == 0]
    assert zero == [1, 3, 5]
    assert [row["objective/horizon"] for row in metrics(acting)] == [1, 1, 2, 2, 4, 4]
    found = decisions(acting)
    assert found[2][1] == {"decision": "adapt_objective", "adaptive_horizon": 2}
    assert checkpoints.read_state(acting / "checkpoints/update-000006")["decider"] == {
        "stop": None,
        "objective": {"adaptive_horizon": 8},
    }
    verify_run(acting)


@pytest.mark.parametrize("update", range(1, 7))
def test_a_crash_does_not_change_decisions(acting, small_job, small_pool, tmp_path, update):
    run = tmp_path / "run"
    config = load_config(acting / "config.yaml")
    with pytest.raises(Crash):
        train(config, small_pool, run, loggers=[Crashing(run, update)])
    train(config, small_pool, run)
    assert state(run, 6) == state(acting, 6)
    verify_run(run)


def test_what_decides_may_not_change(acting, small_pool, tmp_path):
    run = shutil.copytree(acting, tmp_path / "run")
    config = load_config(run / "config.yaml", [("reference.refresh_when.above", "1")])
    with pytest.raises(IncompatibleError, match=r"reference\.refresh_when\.above"):
        train(config, small_pool, run)


def rewritten(run, update, change, change_state=lambda facts: None):
    """Changes a ledger line or the newest checkpoint's state, and makes all that vouches fit."""
    rows = ledger(run)
    change(rows[update - 1])
    (run / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    newest = max((run / "checkpoints").glob("update-*"))
    path = newest / "state.json"
    facts = json.loads(path.read_text())
    facts["ledger"] = ledger_digest(rows, facts["applied"])
    change_state(facts)
    path.write_text(json.dumps(facts))
    manifest = json.loads((newest / "MANIFEST.json").read_text())
    manifest["state.json"] = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    (newest / "MANIFEST.json").write_text(json.dumps(manifest))


STOPPED = {"decision": "stop", "metric": "reference/k3", "above": 0.0, "for": 1, "value": 0.5}
TAMPERED = {
    "a value": (2, lambda row: row["decisions"][0].update(value=0.5)),
    "a threshold": (2, lambda row: row["decisions"][0].update(above=-1.0)),
    "a horizon": (2, lambda row: row["decisions"][1].update(adaptive_horizon=16)),
    "one dropped": (4, lambda row: row["decisions"].pop()),
    "all dropped": (4, lambda row: row.pop("decisions")),
    "one invented": (3, lambda row: row.update(decisions=[STOPPED])),
    "a stop without a condition": (3, lambda row: row.update(decisions=[{"decision": "stop"}])),
    "something else": (3, lambda row: row.update(decisions="none")),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_decision_is_refused(acting, tmp_path, name):
    run = shutil.copytree(acting, tmp_path / "run")
    update, change = TAMPERED[name]
    rewritten(run, update, change)
    with pytest.raises(DataError, match=f"update {update}"):
        verify_run(run)


def test_a_table_of_another_window_is_refused(acting, tmp_path):
    run = shutil.copytree(acting, tmp_path / "run")
    table = max((run / "anchors").glob("reference-*"))
    first = int(table.stem[-6:]) - 1
    shutil.copy(table, table.with_name(f"reference-{first:06d}.safetensors"))
    rewritten(
        run, 1, lambda row: None, lambda facts: facts["anchors"]["reference"].update(first=first)
    )
    with pytest.raises(DataError, match="reference table of another window"):
        verify_run(run)


def test_a_changed_measurement_is_refused_where_it_decides(acting, tmp_path):
    run = shutil.copytree(acting, tmp_path / "run")
    text = (run / "metrics.jsonl").read_text()
    value = metrics(run)[1]["reference/k3"]
    (run / "metrics.jsonl").write_text(
        text.replace(f'"reference/k3": {value}', '"reference/k3": 1')
    )
    with pytest.raises(DataError, match="the decisions of update 2"):
        verify_run(run)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (("train.stop_when", "{weights/es: < 1e-3}"), "there is no metric 'weights/es'"),
        (("reference.refresh_when", "{metric: probe/k3, above: 1}"), "there is no metric"),
        (("train.stop_when", "{metric: time/update_s, above: 1}"), "nothing may depend on time"),
        (("old.refresh_when", "{drift/noise_floor: < 1}"), "measured once"),
        (("train.keep_best", "true"), "train.keep_best needs held-out problems"),
    ],
)
def test_what_nothing_can_depend_on(small_job, small_pool, tmp_path, override, words):
    with pytest.raises(ConfigError, match=words) as caught:
        train(job(small_job, override), small_pool, tmp_path / "run")
    assert override[0].rsplit(".", 1)[1] in caught.value.message
    if "there is no metric" in words:
        assert "did you mean" in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_a_metric_that_is_not_measured_is_refused_before_the_first_step(
    small_job, small_pool, tmp_path
):
    config = job(small_job, ("objective", "{name: pg}"), STOP)
    with pytest.raises(ConfigError, match="reference/k3 is not measured") as caught:
        train(config, small_pool, tmp_path / "run")
    assert "weights/ess" in caught.value.hint
    assert ledger(tmp_path / "run") == []


def test_a_resumed_run_is_refused_what_it_never_measured(plain, small_pool, tmp_path):
    run = shutil.copytree(plain, tmp_path / "run")
    shutil.rmtree(run / "checkpoints/update-000006")
    before, *_ = state(run, 4)
    never = ("train.stop_when", "{objective/tis_capped: '> -1'}")
    with pytest.raises(ConfigError, match="objective/tis_capped is not measured") as caught:
        train(load_config(run / "config.yaml", [never]), small_pool, run)
    assert "weights/ess" in caught.value.hint
    assert " update," not in caught.value.hint
    assert len(ledger(run)) == 4
    assert state(run, 4)[0] == before
    measured = ("train.stop_when", "{probe/ess: < 0}")
    train(load_config(run / "config.yaml", [measured]), small_pool, run)
    assert len(ledger(run)) == 6


def test_the_dry_run_tells(small_job, small_pool):
    every = "\n".join(estimate(job(small_job, ("reference.refresh_when", AWAY), STOP), small_pool))
    words = "reference/k3 is above 0 in 2 measurements in a row"
    assert f"reference     refreshed every 3 updates, and when {words}\n" in every
    assert f"stop_when     {words}\n" in every
    assert "reference     fixed\n" in "\n".join(estimate(job(small_job, FIXED), small_pool))


def test_the_best_checkpoint_stays(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(load_config(small_job, [KEEPING, *EVERY_UPDATE]), small_pool, run)
    status = RunStatus.of(run)
    accuracy = {update: mean for update, _, mean in status.accuracy if update > 0}
    best = max(accuracy, key=lambda update: (accuracy[update], -update))
    assert status.best == (best, pytest.approx(accuracy[best]))
    assert best < 6
    left = [path.name for path in checkpoints.checkpoints_of(run / "checkpoints")]
    assert left == [f"update-{best:06d}", "update-000006"]
    folder = run / "checkpoints" / left[0]
    assert describe(status)[-1].endswith(f"after update {best}: {folder}")
    checkpoints.verify(folder)
    assert len(list((run / "anchors").iterdir())) == 2
    verify_run(run)
    # The ledger says so, whenever there was a new best.
    best_so_far, news = 0.0, []
    for update in range(1, 6):
        if accuracy[update] > best_so_far:
            best_so_far = accuracy[update]
            news.append((update + 1, update, best_so_far))
    assert [
        (row["update"], d["checkpoint"], d["accuracy"])
        for row in ledger(run)
        for d in row.get("decisions", [])
        if d["decision"] == "keep_best"
    ] == [(line, update, pytest.approx(mean)) for line, update, mean in news]
    # No longer asked for, it goes with the next start.
    train(load_config(run / "config.yaml", [("train.keep_best", "false")]), small_pool, run)
    assert [path.name for path in checkpoints.checkpoints_of(run / "checkpoints")] == left[1:]
    assert "its checkpoint was removed" in describe(RunStatus.of(run))[-1]
    verify_run(run)
    (run / f"evaluations/arithmetic-update-{best:06d}.parquet").unlink()
    with pytest.raises(DataError, match=f"evaluation .*-update-{best:06d}.parquet is missing"):
        verify_run(run)


def kept_best(run):
    """(line, update) of every decision to keep a checkpoint."""
    return [
        (update, decision["checkpoint"])
        for update, found in decisions(run).items()
        for decision in found
        if decision["decision"] == "keep_best"
    ]


@pytest.fixture(scope="module")
def judged(small_job, small_pool, tmp_path_factory):
    """Every update is evaluated; all checkpoints are there."""
    run = tmp_path_factory.mktemp("runs") / "judged"
    settings = [KEEPING, *EVERY_UPDATE, ("train.keep_checkpoints", "6")]
    train(load_config(small_job, settings), small_pool, run)
    return run


def test_a_lost_evaluation_is_named_and_can_be_made_again(judged, tmp_path, capsys):
    run = shutil.copytree(judged, tmp_path / "run")
    _, best = kept_best(run)[-1]
    files = [evaluation_path(run, "arithmetic", update) for update in range(7)]
    before = files[best].read_bytes()
    files[best].unlink()
    with pytest.raises(DataError, match=f"{files[best].name} is missing") as caught:
        verify_run(run)
    assert "offline-rlvr evaluate" in caught.value.hint
    assert evaluate_run(run) == files
    assert files[best].read_bytes() == before
    verify_run(run)
    damaged = 1 if best != 1 else 2
    files[damaged].unlink()
    (run / f"checkpoints/update-{damaged:06d}/model/model.safetensors").write_bytes(b"")
    assert evaluate_run(run) == [file for file in files if file != files[damaged]]
    assert "not evaluated: " in capsys.readouterr().out


def test_what_was_not_asked_for_is_not_evaluated(judged, tmp_path):
    run = shutil.copytree(judged, tmp_path / "run")
    _, best = kept_best(run)[-1]
    config = (run / "config.yaml").read_text().replace("  every: 1\n", "  every: 4\n")
    (run / "config.yaml").write_text(config)
    shutil.rmtree(run / "evaluations")
    asked = [evaluation_path(run, "arithmetic", update) for update in sorted({0, best, 4, 6})]
    assert evaluate_run(run) == asked
    assert sorted((run / "evaluations").iterdir()) == asked


def test_a_worse_checkpoint_than_the_best_is_no_decision(judged, tmp_path):
    accuracy = {update: mean for update, _, mean in RunStatus.of(judged).accuracy}
    _, best = kept_best(judged)[-1]
    for update in {1, 2, 3, 4, 5} - {best}:
        run = shutil.copytree(judged, tmp_path / str(update))
        forged = {"decision": "keep_best", "checkpoint": update, "accuracy": accuracy[update]}
        rewritten(run, 6, lambda row, forged=forged: row.update(decisions=[forged]))
        with pytest.raises(DataError, match="the decisions of update 6"):
            verify_run(run)


def test_the_best_is_chosen_among_the_checkpoints_that_are_there(small_job, small_pool, tmp_path):
    run = tmp_path / "run"
    train(load_config(small_job, [*EVERY_UPDATE, ("train.max_updates", "4")]), small_pool, run)
    accuracy = {update: mean for update, _, mean in RunStatus.of(run).accuracy if update > 0}
    assert max(accuracy, key=lambda update: (accuracy[update], -update)) < 4
    train(load_config(small_job, [KEEPING, *EVERY_UPDATE]), small_pool, run)
    assert kept_best(run)[0] == (5, 4)
    assert all(kept > 3 for _, kept in kept_best(run))
    verify_run(run)
    forged = {"decision": "keep_best", "checkpoint": 4, "accuracy": accuracy[4] + 0.1}
    rewritten(run, 5, lambda row: row.update(decisions=[forged]))
    with pytest.raises(DataError, match="the decisions of update 5"):
        verify_run(run)
