"""Nothing of an engine outlives its owner, however the owner ends."""

import signal
import subprocess
import sys

import pytest

from offline_rlvr.generation import engine_guard

#: A process that ignores SIGTERM, with a child.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def sleeper(code: str = "import time; time.sleep(600)") -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def engine():
    """The process, and all process ids of the engine."""
    process = sleeper(STUBBORN)
    child = int(process.stdout.readline())
    yield process, [process.pid, child]
    engine_guard.end(engine_guard.family([process.pid]))
    process.wait()
    process.stdout.close()


def test_a_killed_owner_takes_its_engine_with_it(engine):
    process, pids = engine
    with sleeper() as owner:
        arguments = [str(owner.pid), str(process.pid)]
        guard = subprocess.Popen([sys.executable, "-P", engine_guard.__file__, *arguments])
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(timeout=2)
        assert process.poll() is None
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        process.wait(timeout=20)
        guard.wait(timeout=20)
    assert not engine_guard.alive(engine_guard.family(pids))


def test_end_kills_what_does_not_end(engine, monkeypatch):
    process, pids = engine
    monkeypatch.setattr(engine_guard, "GRACE_S", 0.5)
    family = engine_guard.family(pids)
    assert [each.pid for each in family] == pids
    engine_guard.end(family)
    process.wait(timeout=5)
    assert not engine_guard.alive(engine_guard.family(pids))
    engine_guard.end(family)  # gone already: nothing to do
