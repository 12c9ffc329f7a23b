"""A user's reward functions, good and hostile; imported in the workers only."""

import ctypes
import os
import signal
import subprocess
import sys
import time

SEEN = []


def exact(completions, answer, **kwargs):
    return [1.0 if c == a else 0.0 for c, a in zip(completions, answer, strict=True)]


def scaled(completions, answer, factor=1.0):
    return [factor * len(c) for c in completions]


def needs_prompts(prompts, completions, answer):
    return [0.0 for _ in completions]


async def asynchronous(completions, answer):
    return [0.0]


def act(completions, answer, **kwargs):
    """Does what the completion says; a well-behaved one is scored 1.0."""
    return [getattr(Acts, c.partition(" ")[0])(*c.split(" ")[1:]) for c in completions]


class Acts:
    def good():
        return 1.0

    def none():
        return None

    def nan():
        return float("nan")

    def text():
        return "much"

    def fails():
        raise KeyError("no such key")

    def hangs():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)

    def spins():
        return float(len(str(3 ** (10**9))))

    def eats():
        blocks = []
        while True:
            blocks.append(bytearray(2**26))

    def segfaults():
        ctypes.string_at(0)

    def exits():
        os._exit(3)

    def leaves():
        sys.exit(0)

    def prints():
        print("x" * 10_000)
        print("y" * 10_000, file=sys.stderr)
        os.write(1, b"\x00\x00\x00\x05hello")
        return 1.0

    def reads_stdin():
        return float(len(sys.stdin.read()))

    def forks(path):
        if os.fork() == 0:
            return 0.0  # the copy goes on as if it were the worker
        return 1.0

    def spawns(path):
        subprocess.Popen(
            [sys.executable, "-c", f"open({path!r}, 'x'); import time; time.sleep(60)"]
        )
        time.sleep(0.2)
        return 1.0

    def forks_and_hangs(path):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        os.environ["CHILD"] = str(pid)
        time.sleep(60)

    def writes(path):
        with open(path, "w") as file:
            file.write("data")
        return 1.0

    def scratch():
        return float(os.listdir(".") == [] and os.environ["HOME"] == os.getcwd())

    def secret():
        with open("/proc/self/environ", "rb") as file:
            raw = file.read()
        return float("SECRET_TOKEN" in os.environ or b"hunter2" in raw)

    def torch():
        return float("torch" in sys.modules or "pytest" in sys.modules)

    def remembers():
        SEEN.append(1)
        return float(len(SEEN))
