"""A user's reward function may do anything; the others' verdicts stay right."""

import os
import time
from pathlib import Path

import pytest

from offline_rlvr.errors import ConfigError
from offline_rlvr.verifier import load

REWARDS = str(Path(__file__).parent / "rewards_for_tests.py")
GOOD = ("a", "good")


@pytest.fixture(scope="module")
def acts():
    os.environ["SECRET_TOKEN"] = "hunter2"
    try:
        with load(
            "function", path=f"{REWARDS}:act", workers=2, timeout_s=1.5, memory_gib=0.25
        ) as running:
            yield running
    finally:
        del os.environ["SECRET_TOKEN"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    ("act", "status"),
    [
        ("none", "error"),
        ("nan", "error"),
        ("text", "error"),
        ("fails", "error"),
        ("no_such_act", "error"),
        ("leaves", "error"),
        ("hangs", "timeout"),
        ("spins", "timeout"),
        ("eats", "memory"),
        ("segfaults", "crash"),
        ("exits", "crash"),
        ("reads_stdin", "incorrect"),
    ],
)
def test_only_the_guilty_response_is_unscored(acts, act, status):
    items = [GOOD] * 5 + [("a", act)] + [GOOD] * 5
    start = time.perf_counter()
    verdicts = acts.score(items)
    assert [v.status for v in verdicts] == ["correct"] * 5 + [status] + ["correct"] * 5
    assert (verdicts[5].reward is None) == (status != "incorrect")
    assert time.perf_counter() - start < 10
    assert len(acts._sandbox.worker_pids()) <= 2


def test_prints_do_not_disturb_the_protocol(acts):
    assert [v.status for v in acts.score([("a", "prints"), GOOD] * 5)] == ["correct"] * 10


def test_forks_end_with_the_task(acts, tmp_path):
    verdicts = acts.score(
        [("a", f"forks {tmp_path}"), GOOD, ("a", f"forks_and_hangs {tmp_path}"), GOOD]
    )
    assert [v.status for v in verdicts] == ["correct", "correct", "timeout", "correct"]


def test_files_cannot_be_written(acts, tmp_path):
    target = tmp_path / "out.txt"
    (verdict,) = acts.score([("a", f"writes {target}")])
    assert verdict.status == "error"
    assert not target.exists() or target.stat().st_size == 0


@pytest.mark.parametrize(("act", "score"), [("scratch", 1.0), ("secret", 0.0), ("torch", 0.0)])
def test_a_worker_is_bare(acts, act, score):
    assert acts.score([("a", act)])[0].reward == score


def test_scores_are_rewards_and_module_state_lives_in_the_worker_only():
    path = f"{REWARDS}:scaled"
    with load("function", path=path, workers=1, kwargs={"factor": 0.25}, correct_from=0.5) as v:
        short, long = v.score([("g", "x"), ("g", "xxx")])
    assert (short.status, short.reward) == ("incorrect", 0.25)
    assert (long.status, long.reward) == ("correct", 0.75)


def test_workers_are_recycled():
    with load("function", path=f"{REWARDS}:act", workers=1, max_tasks=3) as v:
        first = v._sandbox.worker_pids()
        counts = [x.reward for x in v.score([("a", "remembers")] * 7)]
        assert counts == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]
        assert v._sandbox.worker_pids() != first


def test_processes_and_scratch_are_gone_after_close(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    marker = tmp_path / "spawned"
    with load("function", path=f"{REWARDS}:act", workers=2) as v:
        assert v.score([("a", f"spawns {marker}"), GOOD])[1].status == "correct"
        pids = v._sandbox.worker_pids()
        assert len(list(tmp_path.glob("offline-rlvr-verifier-*"))) == len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert list(tmp_path.glob("offline-rlvr-verifier-*")) == []
    end = time.monotonic() + 5  # SIGKILL is sent; dying takes a moment
    while processes_mentioning(str(marker)) and time.monotonic() < end:
        time.sleep(0.05)
    assert processes_mentioning(str(marker)) == []


def processes_mentioning(text):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid() and alive(pid)]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("absent", "has no function 'absent'"),
        ("SEEN", "has no function 'SEEN'"),
        ("needs_prompts", "missing a required argument: 'prompts'"),
        ("asynchronous", "is async"),
    ],
)
def test_a_function_that_cannot_be_called_is_a_config_error(function, said):
    verifier = load("function", path=f"{REWARDS}:{function}")
    with pytest.raises(ConfigError) as caught, verifier:
        pass
    assert said in str(caught.value)


def test_identifier_follows_the_source(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("def f(completions, answer): return [1.0]\n")
    first = load("function", path=f"{source}:f").id
    source.write_text("def f(completions, answer): return [0.0]\n")
    assert load("function", path=f"{source}:f").id != first


def test_a_module_on_the_path_is_found_without_running_it(tmp_path, monkeypatch):
    (tmp_path / "pack_for_test").mkdir()
    (tmp_path / "pack_for_test" / "__init__.py").write_text("")
    (tmp_path / "pack_for_test" / "mine.py").write_text(
        "import sys\nassert 'pytest' not in sys.modules\n"
        "def f(completions, answer): return [float(completions == answer)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with load("function", path="pack_for_test.mine:f", workers=1) as v:
        assert [x.reward for x in v.score([("a", "a"), ("a", "b")])] == [1.0, 0.0]
