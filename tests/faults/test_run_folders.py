"""Files beside a run's own, or in its place: nothing is lost, nothing fails."""

import shutil
from pathlib import Path

import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.trainer.follow import follow
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.status import list_runs
from offline_rlvr.trainer.verify import verify_run


@pytest.fixture(scope="module")
def finished(small_job, small_pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train(job(small_job), small_pool, path)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "runs/run"))


def job(path, updates="2"):
    return load_config(path, [("evaluation.problems", "null"), ("train.max_updates", updates)])


def test_a_refused_folder_keeps_its_evaluations(small_job, small_pool, tmp_path):
    kept = tmp_path / "mine/evaluations/results.csv"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(DataError, match=r"no run\.json"):
        train(job(small_job), small_pool, tmp_path / "mine")
    (tmp_path / "mine/notes.txt").touch()
    with pytest.raises(DataError, match=r"notes\.txt"):
        train(job(small_job), small_pool, tmp_path / "mine")
    assert kept.read_text() == "mine"


def test_without_run_json_no_checkpoint_is_continued(run, small_job, small_pool):
    (run / "run.json").unlink()
    shutil.rmtree(run / "responses")
    with pytest.raises(DataError, match=r"no run\.json"):
        train(job(small_job, "3"), small_pool, run)


def test_files_of_other_names_do_no_harm(run, small_job, small_pool):
    (run / "responses/notes.parquet").touch()
    (run / "anchors/reference-copy.safetensors").touch()
    newest = run / "checkpoints/update-000002"
    shutil.copytree(newest, newest.with_name("update-backup"))
    assert list_runs(run.parent)[0][1] == "complete"
    verify_run(run)
    train(job(small_job), small_pool, run)
    assert newest.with_name("update-backup").exists()


def test_another_process_refuses_a_pool_that_has_grown_meanwhile(run, small_job, small_pool):
    other = load_config(small_job, [("train.seed", "1")])
    with pytest.raises(IncompatibleError, match="has changed since"):
        follow(Ranks(1, 2), 1, other, run, small_pool, None)


@pytest.mark.parametrize("part", ["anchors", "checkpoints", "responses", "evaluations"])
def test_a_linked_part_of_a_run_is_refused_and_left_alone(part, small_job, small_pool, tmp_path):
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    (elsewhere / "report-999.parquet").write_text("mine")
    run.mkdir()
    (run / part).symlink_to(elsewhere)
    with pytest.raises(DataError, match="is a link"):
        train(load_config(small_job, [("evaluation.problems", "null")]), small_pool, run)
    assert [path.name for path in elsewhere.iterdir()] == ["report-999.parquet"]
