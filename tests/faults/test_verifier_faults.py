"""What model output and reward functions may do, and what it costs: one response, never the build.

The single faults (hang, memory, segfault, exit, print, fork, write) are in
`tests/verifier/test_verifier_function.py`; here are processes that outlive a call, memory over a
whole batch, and a build whose verifier fails too often.
"""

import os
import pty
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from offline_rlvr.pool import Pool
from offline_rlvr.verifier import load

REWARDS = Path(__file__).with_name("rewards_for_faults.py")
SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY")
SECRETS = (*SECRETS, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
GOOD = ("a", "good")

#: `cases/field-faults.md`: tiny strings with enormous values, or endless to parse.
HOSTILE = [
    ("7", r"\boxed{9^{9^{9}}}"),
    ("7", r"\boxed{99999999!}"),
    ("7", r"\boxed{\binom{10^9}{5\cdot10^8}}"),
    ("7", r"\boxed{\sum_{k=1}^{10^{9}}k^{k}}"),
    ("(x+2)^{3000}", r"\boxed{(x+1)^{3000}}"),
    ("7", r"\boxed{" + "(" * 400 + "5" + ")" * 400 + "}"),
    ("7", r"\boxed{" + "9" * 5000 + "}"),
    ("7", r"\boxed{" * 2000),
]


def alive(marker):
    """Processes whose command line holds the marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, state = (folder / "cmdline").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue
        if marker.encode() in line and state.rsplit(")", 1)[1].split()[0] != "Z":
            found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def gone(marker, seconds=5):
    end = time.monotonic() + seconds
    while alive(marker) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(marker)


@pytest.fixture(scope="module")
def acts():
    with pytest.MonkeyPatch.context() as environment:
        for name in SECRETS:
            environment.setenv(name, "hunter2")
        with load("function", path=f"{REWARDS}:act", workers=1, timeout_s=3) as running:
            yield running


@pytest.mark.parametrize(
    ("act", "status"),
    [("daemon", "correct"), ("daemon, then hang", "timeout"), ("daemon, then exit", "crash")],
)
def test_a_process_that_outlives_its_call_is_killed(acts, tmp_path, act, status):
    marker = str(tmp_path / "daemon")
    verdicts = acts.score([GOOD, ("a", f"{act}|{marker}"), GOOD])
    assert [v.status for v in verdicts] == ["correct", status, "correct"]
    assert gone(marker)


def test_a_helper_started_on_import_lives_as_long_as_its_worker(acts, tmp_path):
    verdicts = acts.score([("a", f"daemon|{tmp_path / 'd'}"), ("a", "helper"), ("a", "helper")])
    assert [v.reward for v in verdicts] == [1.0, 1.0, 1.0]


def test_files_and_sockets_are_the_response_s_own_trouble(acts, tmp_path):
    (tmp_path / "file.txt").write_text("visible")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        items = [("a", f"opens|{tmp_path / 'none'}"), ("a", "many files")]
        items += [("a", f"connects|{port}"), ("a", "connects|1"), GOOD]
        statuses = [v.status for v in acts.score(items)]
    assert statuses == ["error", "error", "timeout", "error", "correct"]


def test_tokens_do_not_exist_in_a_worker(acts):
    (verdict,) = acts.score([("a", "|".join(["tokens", *SECRETS]))])
    assert verdict.reward == 0.0
    assert all(os.environ[name] == "hunter2" for name in SECRETS)


def resident_mib(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def test_hostile_strings_among_a_thousand_answers():
    """Bounded time, the others unharmed, as many workers as before, no memory kept."""
    normal = [(str(n), rf"\boxed{{{n + n % 2}}}") for n in range(500)]
    normal += [(rf"{n}\sqrt{{3}}", rf"\boxed{{{n + n % 2}\sqrt{{3}}}}") for n in range(2, 502)]
    batch = list(normal)
    for place, pair in enumerate(HOSTILE):
        batch.insert(100 * (place + 1), pair)
    with load("math_verify", workers=2, timeout_s=3, memory_gib=0.5) as verifier:
        verifier.score(batch[:300])
        ours = resident_mib(os.getpid())
        start = time.monotonic()
        for _ in range(2):
            by_pair = dict(zip(batch, verifier.score(batch), strict=True))
            verifier.score(normal[-2:])  # whoever was killed by the last response is replaced
            workers = verifier._sandbox.worker_pids()
            assert 1 <= len(workers) <= 2
            # The libraries take about 130 MiB; a batch may add half a GiB, a leak would add more.
            assert max(map(resident_mib, workers)) < 700
        assert time.monotonic() - start < 120
        assert resident_mib(os.getpid()) - ours < 100
    expected = ["incorrect" if n % 2 else "correct" for n in (*range(500), *range(2, 502))]
    assert [by_pair[pair].status for pair in normal] == expected
    for pair in HOSTILE:
        assert by_pair[pair].status in ("incorrect", "no_answer", "timeout", "memory"), pair
        assert (by_pair[pair].reward is None) == (by_pair[pair].status in ("timeout", "memory"))


SESSION = r"""
from offline_rlvr.verifier import load
with load("math_verify", workers=1) as verifier:
    verdicts = verifier.score([("$7$", r"\boxed{7}"), (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
        ("7", r"\boxed{8}"), ("7", "no box"), ("x+", r"\boxed{7}")])

print("VERDICTS", [(v.status, v.reward) for v in verdicts])
"""


def test_in_an_interactive_session():
    """As in a notebook or at the `>>>` prompt: `__main__` has no file and a terminal is there."""
    terminal, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-i", "-q"],
            input=SESSION,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            timeout=120,
        )
    finally:
        os.close(theirs)
        os.close(terminal)
    expected = [("correct", 1.0), ("correct", 1.0), ("incorrect", 0.0), ("no_answer", 0.0)]
    assert f"VERDICTS {[*expected, ('gold_unparseable', None)]}" in done.stdout


def test_a_verifier_that_fails_too_often_stops_the_build_and_all_is_kept(cli, small_job, tmp_path):
    pool = tmp_path / "pool"
    judge = f"{{name: function, path: '{REWARDS}:sometimes_hangs', timeout_s: 0.5}}"
    build = ("pool", "build", small_job, "-o", pool, "--verifier", judge)
    code, output = cli(*build, "--max-unscored", "1%")
    assert (code, "Traceback" in output) == (6, False), output
    assert "could not be scored; at most 1.0% is allowed (pool.max_unscored)" in output
    assert "everything sampled is kept" in output
    kept = Pool.open(pool)
    assert len(kept) in (16, 32), "what was under way is kept"
    unscored = np.isnan(kept.index.rewards)
    assert 0.01 < unscored.mean() < 0.2
    assert not kept.index.mixed[unscored.any(1)].any(), "an unscored response is not a wrong one"
    code, output = cli("pool", "stats", pool)
    assert (code, "timeout" in output) == (0, True)
    # The limit raised, the same command goes on from there.
    code, output = cli(*build, "--pool.max_unscored", "0.2", "--pool.max_sampled_groups", "48")
    assert code in (0, 6), output
    assert len(Pool.open(pool)) > len(kept)
