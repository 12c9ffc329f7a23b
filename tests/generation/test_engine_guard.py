"""Nothing of an engine outlives its owner, however the owner ends."""

import signal
import subprocess
import sys
import time

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


#: An owner: starts a guard and then an engine, and tells the guard about it unless told otherwise.
OWNER = """
import os, subprocess, sys, time
guard_file, stubborn, tells = sys.argv[1:]
guard = subprocess.Popen(
    [sys.executable, "-P", guard_file, str(os.getpid())], stdin=subprocess.PIPE, text=True
)
engine = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE, text=True)
child = engine.stdout.readline().strip()
if tells == "yes":
    guard.stdin.write(f"{engine.pid}\\n")
    guard.stdin.flush()
print(guard.pid, engine.pid, child, flush=True)
time.sleep(600)
"""


def running(pids):
    return engine_guard.alive(engine_guard.family(pids))


@pytest.mark.parametrize("tells", ["yes", "no"])
def test_a_killed_owner_takes_its_engine_with_it(tells):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, engine_guard.__file__, STUBBORN, tells],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        time.sleep(2 * engine_guard.POLL_S + 1)
        assert [process.pid for process in running(pids)] == pids
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        deadline = time.monotonic() + 30
        while running(pids):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_end_kills_what_does_not_end(monkeypatch):
    monkeypatch.setattr(engine_guard, "GRACE_S", 0.5)
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True
    ) as process:
        pids = [process.pid, int(process.stdout.readline())]
        family = engine_guard.family(pids)
        assert [each.pid for each in family] == pids
        engine_guard.end(family)
        process.wait(timeout=5)
    assert not running(pids)
    engine_guard.end(family)  # gone already: nothing to do
