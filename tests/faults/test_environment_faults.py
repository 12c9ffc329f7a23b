"""Where a pool is built and read: outputs that end, read-only places, no network, moved folders."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from offline_rlvr.pool import Pool


def shell(command, **options):
    code = "from offline_rlvr.cli.main import main; main()"
    full = command.replace("offline-rlvr", f"{sys.executable} -W ignore -c '{code}'")
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", full],
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )


@pytest.mark.parametrize(
    ("end", "codes", "words"),
    [
        (">&-", {0}, ""),
        (">&- 2>&- <&-", {0}, ""),
        ("| head -c 10 | wc -c", {0, 141}, ""),
        ("| true", {141}, ""),
        ("> /dev/full", {5}, "error[resource]: no space left while writing the standard output"),
    ],
)
def test_output_that_nobody_takes(small_pool, end, codes, words):
    done = shell(f"offline-rlvr pool stats '{small_pool}' {end}")
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert words in done.stderr


def test_a_terminal_that_knows_ascii_only(small_pool):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = shell(f"offline-rlvr pool verify '{small_pool}'", env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert "small pool \\xe9: " in done.stdout


def test_a_pool_on_a_read_only_mount(small_pool, mount, cli, small_job, tmp_path):
    place = tmp_path / "mounted"
    place.mkdir()
    mount(place, "--bind", small_pool)
    mount(place, "-o", "remount,ro,bind")
    run = tmp_path / "run"
    train = ("train", small_job, "--pool", place, "--run", run, "--train.max_updates", "1")
    for arguments, code in (
        (("pool", "stats", place), 0),
        (("pool", "verify", place), 0),
        (("pool", "export", place, tmp_path / "x.jsonl"), 0),
        (train, 0),
        (("pool", "build", small_job, "-o", place), 5),
    ):
        got, output = cli(*arguments)
        assert got == code, output
        assert code == 0 or "Read-only file system" in output


def test_a_read_only_pool_can_be_read_and_trained_on(
    own_pool, start, small_job, tmp_path, obey_permissions
):
    locks = [path.unlink() for path in own_pool.glob(".lock*")]
    assert locks, "the builder leaves its lock file"
    for path in sorted(own_pool.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    own_pool.chmod(0o555)
    before, run = Pool.open(own_pool).hash, tmp_path / "run"
    for arguments, code in (
        (["pool", "verify", own_pool, "--deep", "2"], 0),
        (["train", small_job, "--pool", own_pool, "--run", run, "--train.max_updates", "1"], 0),
        (["pool", "build", small_job, "-o", own_pool], 5),
    ):
        process = start(*arguments, preexec_fn=obey_permissions)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == code, output
        assert code == 0 or "make the folder writable or choose another one" in output
    assert Pool.open(own_pool).hash == before
    own_pool.chmod(0o755)


def test_the_temporary_folder_is_on_another_file_system(build, monkeypatch, tmp_path, small_pool):
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    assert build()[0] == 0
    assert Pool.open(tmp_path / "pool é").hash == Pool.open(small_pool).hash


def test_without_network_and_with_a_clock_that_jumps(
    build, contents, monkeypatch, pool, small_pool
):
    def refuse(*args):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    hours = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    code, output = build("--pool.max_hours", "1")
    assert code == 0, output
    assert contents(pool) == contents(small_pool)


def test_a_pool_that_is_moved_goes_on_elsewhere(build, pool, tmp_path, small_pool):
    assert build("--pool.max_sampled_groups", "16")[0] == 6
    elsewhere = tmp_path / "another disk" / "pool"
    elsewhere.parent.mkdir()
    pool.rename(elsewhere)
    assert build(pool=elsewhere)[0] == 0
    assert not pool.exists()
    assert Pool.open(elsewhere).hash == Pool.open(small_pool).hash
