"""Reward functions that misbehave; imported in the sandbox's workers only."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time

HELPER = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def act(completions, answer, **kwargs):
    """Does what the completion says."""
    name, *arguments = completions[0].split("|")
    return [ACTS[name](*arguments)]


def sometimes_hangs(completions, answer, **kwargs):
    """More than 1 % of all answers hang, and SIGTERM does not end them."""
    digest = hashlib.sha256(f"{completions[0]}{answer[0]}".encode()).digest()
    if digest[0] < 16:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    return [float(digest[0] % 2)]


def _daemon(path):
    """A grandchild in a session of its own, its parent gone: what `nohup` leaves."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with subprocess.Popen(
                [sys.executable, "-c", f"import time; {path!r}; time.sleep(600)"]
            ):
                time.sleep(600)
        os._exit(0)
    end = time.monotonic() + 10
    while path.encode() not in _command_lines() and time.monotonic() < end:
        time.sleep(0.02)
    return 1.0


def _command_lines():
    found = b""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found += file.read()
        except OSError:
            continue
    return found


def _daemon_and(then):
    def run(path):
        _daemon(path)
        return then()

    return run


def _opens(path):
    with open(path) as file:
        return float(file.read() == "visible")


def _many_files():
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(5000)]
    return float(len(held))


def _tokens(*names):
    home = os.path.expanduser("~/.cache/huggingface/token")
    return float(any(name in os.environ for name in names) or os.path.exists(home))


def _connects(port):
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.sendall(b"token")
        return float(len(connection.recv(1)))


ACTS = {
    "good": lambda: 1.0,
    "helper": lambda: float(HELPER.poll() is None),
    "daemon": _daemon,
    "daemon, then hang": _daemon_and(lambda: time.sleep(600)),
    "daemon, then exit": _daemon_and(lambda: os._exit(1)),
    "opens": _opens,
    "many files": _many_files,
    "tokens": _tokens,
    "connects": _connects,
}
