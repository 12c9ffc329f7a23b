"""Where the verifier is called from, and what is left when the caller ends badly."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from offline_rlvr.errors import ResourceError
from offline_rlvr.verifier import load
from offline_rlvr.verifier.sandbox import Limits, Sandbox
from offline_rlvr.verifier.sandbox.wire import Decoder, WireError, encode

HARD = [(r"\sqrt{8}", r"\boxed{2\sqrt{2}}"), (r"\sqrt{8}", r"\boxed{3}")]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_from_threads_at_once(verifier):
    results = {}

    def work(number):
        items = [
            (rf"{number}\sqrt{{2}}", rf"\boxed{{{number + k % 2}\sqrt{{2}}}}") for k in range(20)
        ]
        results[number] = [v.status for v in verifier.score(items)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: ["correct", "incorrect"] * 10 for n in range(2, 8)}


def test_started_in_a_thread_that_ends_before_the_work_is_done():
    verifier = load("math_verify", workers=1)
    starter = threading.Thread(target=verifier.__enter__)
    starter.start()
    starter.join()
    try:
        assert [v.status for v in verifier.score(HARD)] == ["correct", "incorrect"]
    finally:
        verifier.close()


def test_inside_an_event_loop_and_our_own_alarm_survives(verifier):
    rang = []
    old = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:

        async def main():
            return verifier.score(HARD), await asyncio.to_thread(verifier.score, HARD)

        for verdicts in asyncio.run(main()):
            assert [v.status for v in verdicts] == ["correct", "incorrect"]
        assert wait_until(lambda: rang)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


ENDLESS = r"""
v.score([("7", "\\boxed{\\sum_{k=1}^{10^{9}}k^{k}}")])
"""
SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
print("main", flush=True)
from offline_rlvr.verifier import load
v = load("math_verify", workers=2).__enter__()
print([x.status for x in v.score([("$\\\\sqrt{4}$", "\\\\boxed{2}")])], flush=True)
while len(v._sandbox.worker_pids()) < 2: time.sleep(0.05)
print(*v._sandbox.worker_pids(), flush=True)
"""


def start_script(tmp_path, ending):
    path = tmp_path / "no guard.py"
    path.write_text(SCRIPT + ending)
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # a killed caller leaves empty directories
    )
    assert process.stdout.readline() == "main\n"
    assert process.stdout.readline() == "['correct']\n"
    pids = [int(p) for p in process.stdout.readline().split()]
    assert len(pids) == 2
    return process, pids


def finish(process):
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def test_main_without_a_guard_runs_once_and_its_end_ends_the_workers(tmp_path):
    process, pids = start_script(tmp_path, "")
    assert finish(process) == (0, "", "")
    assert wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphans_when_the_caller_is_stopped_in_the_middle(tmp_path, sent):
    process, pids = start_script(tmp_path, ENDLESS)
    time.sleep(0.5)
    process.send_signal(sent)
    code, _, err = finish(process)
    assert code != 0
    assert ("KeyboardInterrupt" in err) == (sent == signal.SIGINT)
    assert wait_until(lambda: not any(map(alive, pids)))


def test_a_worker_killed_from_outside_costs_one_response(verifier):
    verifier.score(HARD)
    for pid in verifier._sandbox.worker_pids():
        os.kill(pid, signal.SIGKILL)
    items = [(rf"{n}\sqrt{{3}}", rf"\boxed{{{n}\sqrt{{3}}}}") for n in range(2, 30)]
    statuses = [v.status for v in verifier.score(items)]
    assert statuses.count("correct") >= len(items) - 2
    assert set(statuses) <= {"correct", "crash"}


def test_close_ends_a_score_that_is_under_way():
    verifier = load("math_verify", workers=1, timeout_s=60).__enter__()
    caught = []

    def work():
        try:
            verifier.score([("7", r"\boxed{\sum_{k=1}^{10^{9}}k^{k}}")] * 3)
        except ResourceError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    start = time.monotonic()
    verifier.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert time.monotonic() - start < 5
    assert len(caught) == 1
    assert [v.status for v in verifier.score(HARD)] == ["correct", "incorrect"]  # it starts again
    verifier.close()


def test_file_descriptors_and_threads_do_not_pile_up():
    def resources():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = resources()
    for _ in range(3):
        with load("math_verify", workers=2) as verifier:
            verifier.score(HARD)
    assert resources() == before


def test_workers_that_cannot_start_are_a_resource_error():
    limits = Limits(workers=2, timeout_s=1, memory_gib=1, max_tasks=5, start_timeout_s=30)
    sandbox = Sandbox("offline_rlvr.no_such_module:f", {}, limits)
    with pytest.raises(ResourceError, match="no_such_module"):
        sandbox.run([("x",)])
    slow = Limits(workers=1, timeout_s=1, memory_gib=1, max_tasks=5, start_timeout_s=0.001)
    with pytest.raises(ResourceError, match="timeout before it was ready"):
        Sandbox("math:sqrt", {}, slow).start()


def test_wire_frames_survive_any_cut_and_refuse_garbage():
    message = {"id": 1, "args": ["\ud800 \u00e9 \x00", None, 1.5]}
    data = encode(message) * 2
    decoder = Decoder()
    got = []
    for byte in data:
        decoder.feed(bytes([byte]))
        if (found := decoder.take()) is not None:
            got.append(found)
    assert got == [message, message]
    decoder.feed(b"\xff\xff\xff\xff")
    with pytest.raises(WireError):
        decoder.take()
    garbled = Decoder()
    garbled.feed(b"\x00\x00\x00\x05hello")
    with pytest.raises(WireError):
        garbled.take()
