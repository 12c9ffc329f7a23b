"""`offline-rlvr study`: methods x seeds on one pool, continued after any stop."""

import signal
import time

import pytest

from offline_rlvr.config.study import load_study
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.evaluation import evaluation_path
from offline_rlvr.lock import writer_of
from offline_rlvr.study import run_study
from offline_rlvr.study.commands import Commands
from offline_rlvr.study.runs import study_runs
from offline_rlvr.trainer.status import RunStatus
from offline_rlvr.trainer.verify import verify_run

METHODS = """
methods:
  GGPO: {objective: {name: ggpo, beta: 1.0}}
  pg:
    objective: {name: pg}
"""


def find_runs(folder):
    return [RunStatus.of(path.parent) for path in sorted(folder.glob("*/run.json"))]


def stop_once(process, begun, number):
    """Send the signal as soon as something has begun; the study must say that it goes on later."""
    deadline = time.monotonic() + 200
    while not begun():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 75, said


@pytest.fixture
def study_file(small_job, small_pool, tmp_path):
    def write(text=METHODS, seeds="[0, 7]", job="{train: {max_updates: 3}}"):
        path = tmp_path / "two methods" / "study.yaml"
        path.parent.mkdir(exist_ok=True)
        head = f"base: {small_job}\npool: {small_pool}\nseeds: {seeds}\njob: {job}\n"
        path.write_text(head + text)
        return path

    return write


def test_every_run_is_an_ordinary_one_and_a_finished_study_does_nothing(
    command, study_file, tmp_path
):
    file, output = study_file(), tmp_path / "runs"
    code, said = command("study", file, "--output", output, "--parallel", "2")
    assert code == 0, said
    assert "study two methods: 2 methods (GGPO, pg) x 2 seeds" in said
    assert "4 runs to go, 12 updates in all; about" in said
    finished = sorted(line for line in said.splitlines() if line.startswith("finished"))
    assert [line.split(",")[0] for line in finished] == [
        f"finished {name}" for name in ("GGPO-0", "GGPO-7", "pg-0", "pg-7")
    ]
    runs = find_runs(output)
    assert [(run.run.path.name, run.state, run.applied) for run in runs] == [
        (name, "complete", 3) for name in ("GGPO-0", "GGPO-7", "pg-0", "pg-7")
    ]
    plans = [run.run.facts["plan"]["hash"] for run in runs]
    assert plans[0] == plans[2] != plans[1] == plans[3]  # one order per seed for all methods
    for run in runs:
        verify_run(run.run.path)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("ledger.jsonl")}
    code, said = command("study", file, "--output", output)
    assert code == 0
    assert "4 of 4 runs are finished" in said
    assert before == {path: path.stat().st_mtime_ns for path in output.rglob("ledger.jsonl")}


def test_a_run_is_finished_when_every_held_out_set_is_evaluated(command, study_file, tmp_path):
    one = "{name: arithmetic, split: heldout, count: 3, seed: 1}"
    sets = f"{{problems: {{name: sets, sums: {one}, more: {one}}}}}"
    job = f"{{train: {{max_updates: 2}}, evaluation: {sets}}}"
    file = study_file("methods: {pg: {objective: {name: pg}}}\n", "[0]", job)
    output = tmp_path / "runs"
    code, said = command("study", file, "--output", output)
    assert code == 0, said
    assert f"offline-rlvr compare {output} --output {output / 'compare'}" in said
    (run,) = study_runs(load_study(file), output)
    assert run.finished
    last = evaluation_path(run.folder, "more", 2)
    last.unlink()
    assert not run.finished
    code, said = command("study", file, "--output", output)
    assert code == 0, said
    assert last.is_file()
    assert run.finished


def test_a_stop_reaches_every_run_and_the_same_command_goes_on(
    start, command, study_file, tmp_path
):
    file, output = study_file(seeds="[0]", job="{train: {max_updates: 6}}"), tmp_path / "runs"
    process = start("study", file, "--output", output, "--parallel", "2")
    ledgers = [output / name / "ledger.jsonl" for name in ("GGPO-0", "pg-0")]
    stop_once(process, lambda: any(path.exists() for path in ledgers), signal.SIGTERM)
    assert all(status.state in ("stopped", "new", "complete") for status in find_runs(output))
    code, said = command("study", file, "--output", output, "--parallel", "2")
    assert code == 0, said
    assert [status.state for status in find_runs(output)] == ["complete", "complete"]
    for status in find_runs(output):
        verify_run(status.run.path)


def test_a_run_that_fails_is_told_with_its_last_words_and_stops_no_other(
    command, study_file, tmp_path
):
    text = "methods:\n  wild: {train: {learning_rate: 1.0e+30}}\n  fine: {objective: {name: pg}}\n"
    file, output = study_file(text, "[0]"), tmp_path / "runs"
    for _ in range(2):  # typed again, the failing run is the first of what is left
        code, said = command("study", file, "--output", output)
        assert code == 6
        assert "not finite; no step was taken" in said
        assert "no estimate, the pilot failed" in said
        assert RunStatus.of(output / "fine-0").state == "complete"
    assert "1 of 2 runs are finished" in said
    assert [path.name for path in (output / "logs").iterdir() if path.is_dir()] == []


def test_a_stop_ends_the_pool_s_build(start, small_job, tmp_path):
    pool, file = tmp_path / "pool", tmp_path / "study.yaml"
    job = "{problems: {count: 5000}, pool: {mixed_groups: 4000}}"
    file.write_text(f"base: {small_job}\npool: {pool}\nseeds: [0]\njob: {job}\nmethods: {{a: }}\n")
    process = start("study", file, "--output", tmp_path / "runs")
    stop_once(process, lambda: list(pool.glob("commits/*")), signal.SIGINT)
    assert writer_of(pool) is None


def test_the_plan_is_shown_without_training(command, study_file, tmp_path):
    output = tmp_path / "runs"
    code, said = command("study", study_file(), "--output", output, "--dry-run")
    assert code == 0
    assert "4 runs to go, 12 updates in all" in said
    assert find_runs(output) == []
    assert not (output / "pilot").exists()
    # What it rests on is measured once, and again where it was damaged.
    log, figures = output / "logs/pilot.log", output / "logs/pilot.json"
    for content, measured in ((figures.read_bytes(), False), (b"[]", True), (b'{"job": 1', True)):
        figures.write_bytes(content)
        log.unlink(missing_ok=True)
        code, again = command("study", study_file(), "--output", output, "--dry-run")
        assert code == 0
        assert log.exists() == measured
        assert measured or again == said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "methods: Field required"),
        ("methods: {}\n", "methods: Dictionary should have at least 1"),
        ("methods: {a/b: }\n", r"study.yaml:5: the method 'a/b' becomes a folder"),
        ("methods:\n  a:\n    trian: {}\n", r"study.yaml:7: trian: unknown key; did you mean"),
        ("methods:\n  a: {objective: {name: nope}}\n", None),
        ("methods: {a: }\nmethod: 1\n", "method: Extra inputs"),
        ("methods: {a: {train: {seed: 3}}}\n", r"study.yaml:5: a method may not set train.seed"),
    ],
)
def test_a_wrong_study_is_refused_with_its_line(text, message, study_file):
    path = study_file(text)
    if message is None:
        load_study(path)  # a name is checked where the part is loaded
        return
    with pytest.raises(ConfigError, match=message):
        load_study(path)


def test_seeds_are_those_of_the_study(study_file):
    with pytest.raises(ConfigError, match=r"study.yaml:4: a job may not set evaluation.seed"):
        load_study(study_file(job="{evaluation: {seed: 3}}"))


def test_seeds_are_distinct(study_file):
    with pytest.raises(ConfigError, match=r"study.yaml:3: a seed is written twice"):
        load_study(study_file(seeds="[1, 1]"))


def test_a_study_that_was_changed_does_not_mix_with_what_it_was(command, study_file, tmp_path):
    output = tmp_path / "runs"
    one = "methods: {a: {objective: {beta: 1.0}}}\n"
    code, said = command("study", study_file(one, "[0]"), "--output", output)
    assert code == 0, said
    code, said = command("study", study_file(one.replace("1.0", "0.5"), "[0]"), "--output", output)
    assert code == 2
    assert "objective.beta: 1.0 -> 0.5" in said
    longer = study_file(one, "[0]", "{train: {max_updates: 6}}")  # what may be changed goes on
    code, said = command("study", longer, "--output", output)
    assert code == 0, said
    assert RunStatus.of(output / "a-0").applied == 6
    (output / "something").mkdir()
    with pytest.raises(DataError, match="not of this study: something"):
        study_runs(load_study(longer), output)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("{a: {objective: {name: grppo}}}", "there is no objective 'grppo'"),
        ("{a: {objective: {bta: 1.0}}}", "bta"),
        ("{a: {train: {stop_when: {metric: weights/es, below: 1}}}}", "there is no metric"),
        ("{a: {evaluation: {generation: {name: server}}}}", "goes on serving"),
        ("{a: {sampling: {temperature: 0.5}}}", r"'a' has a sampling.temperature of its own, 0.5"),
        ("{a: , b: {train: {max_updates: 2}}}", "'b' has a train.max_updates of its own, 2 for 3"),
        ("{a: , b: {objective: {beta: 1.0}}}", "the methods 'a' and 'b' are the same"),
    ],
)
def test_a_study_that_cannot_be_trained_or_compared_is_refused(
    study_file, tmp_path, methods, message
):
    with pytest.raises(ConfigError, match=message):
        run_study(load_study(study_file(f"methods: {methods}\n")), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_each_process_has_its_share_of_the_machine(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Commands(4)._environment(0)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-abc")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    devices = [Commands(2)._environment(share)["CUDA_VISIBLE_DEVICES"] for share in (0, 1)]
    assert devices == ["3", "GPU-abc"]
