"""Killed at any instant, cut from power at any instant, out of space, read-only, two at once."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from offline_rlvr.errors import BusyError, DataError, ResourceError
from offline_rlvr.pool import Pool, PoolWriter

#: Every so many calls are tried every day, and all of them in the soak.
ALL = pytest.param(1, marks=pytest.mark.soak)


def python(code: str, *args: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("step", [4, ALL])
def test_sigkill_before_every_call_that_touches_the_disk(drive, tmp_path, step):
    # 2 commits of 3 files, each opened, written, fsynced, renamed, and its folder fsynced.
    assert drive("building", "kill", tmp_path, step)["calls"] > 50


def test_power_cut_before_every_call_that_touches_the_disk(drive, tmp_path):
    assert drive("building", "image", tmp_path)["images"] > 20


@pytest.mark.parametrize("step", [4, ALL])
@pytest.mark.parametrize("mode", ["repair", "merge"])
def test_sigkill_anywhere_in_a_repair_or_merge(drive, tmp_path, mode, step):
    """Typed again it ends in the same files, byte for byte."""
    assert drive("building", mode, tmp_path, step)["calls"] > 30


def test_power_cut_anywhere_in_a_repair(drive, tmp_path):
    assert drive("building", "repair_image", tmp_path)["images"] > 15


def test_order_of_a_commit(pool_path, identity, group, monkeypatch):
    """Parts are durable before their commit exists, and the commit before append returns."""
    events = []

    def record(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            what = args[0] if isinstance(args[0], int) else Path(args[-1]).name
            if isinstance(what, int):
                what = Path(os.readlink(f"/proc/self/fd/{what}")).name
            events.append((name, what))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        for name in ("write", "fsync", "replace", "link"):
            record(name)
        writer.append([group(10)], "exact-1")
        monkeypatch.undo()
    part, commit = "part-00000003.parquet", "00000003.json"
    assert events == [
        ("write", f".tmp-{part}"),
        ("fsync", f".tmp-{part}"),
        ("replace", part),
        ("fsync", "samples"),
        ("write", f".tmp-{part}"),
        ("fsync", f".tmp-{part}"),
        ("replace", part),
        ("fsync", "exact-1"),
        ("write", f".tmp-{commit}"),
        ("fsync", f".tmp-{commit}"),
        ("link", commit),
        ("fsync", "commits"),
    ]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "link"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_refuses(pool_path, identity, group, monkeypatch, call, code):
    before = Pool.open(pool_path).hash

    def refuse(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        monkeypatch.setattr(os, call, refuse)
        with pytest.raises(ResourceError, match="type the same command again") as caught:
            writer.append([group(10)], "exact-1")
        monkeypatch.undo()
        assert caught.value.exit_code == 5
        assert "00000003" in caught.value.message
        with pytest.raises(ResourceError, match="open the pool for writing again"):
            writer.append([group(10)], "exact-1")
        assert writer.committed_group_ids.tolist() == list(range(10))
    assert Pool.open(pool_path).hash == before
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        assert not [p for p in pool_path.rglob("*") if "tmp" in p.name or "00000003" in p.name]
        assert writer.append([group(10)], "exact-1") == 3
    assert len(Pool.open(pool_path)) == 11


def test_failed_folder_fsync_after_the_commit_is_published(pool_path, identity, group, monkeypatch):
    """The commit may or may not survive; the writer says so and reopening finds out."""
    real = os.fsync

    def refuse(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/commits"):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(ResourceError, match="Input/output error"):
            writer.append([group(10)], "exact-1")
        monkeypatch.undo()
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        assert writer.commit == 3
        with pytest.raises(DataError, match="group 10 is in"):
            writer.append([group(10)], "exact-1")


def test_full_disk_in_the_middle_of_a_part(pool_path, identity, group):
    """A real limit: the part is larger than any file may be."""
    before = Pool.open(pool_path).hash
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with PoolWriter.create_or_open(pool_path, identity()) as writer:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            with pytest.raises(ResourceError, match=r"no space left while writing .*part-00000003"):
                writer.append([group(i) for i in range(10, 200)], "exact-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not (pool_path / "samples/.tmp-part-00000003.parquet").exists()
    assert Pool.open(pool_path).hash == before
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        writer.append([group(10)], "exact-1")


def test_read_only_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o755)
    code = """
        import os, sys
        from offline_rlvr.pool import PoolWriter
        import filelock._soft
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            PoolWriter.create_or_open(sys.argv[1], {"group_size": 2, "vocab_size": 9})
        except Exception as error:
            print(type(error).__name__, error.exit_code, error)
    """
    if os.geteuid() != 0:
        (tmp_path / "locked").chmod(0o555)
    for parent in tmp_path.parents:
        if (
            parent != Path("/tmp")
            and parent.stat().st_uid == os.geteuid()
            and len(parent.parts) > 2
        ):
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    for path in (tmp_path / "locked", tmp_path / "locked" / "p"):
        done = python(code, path)
        assert done.stdout.startswith("ResourceError 5 cannot write"), done.stdout + done.stderr
        assert str(path) in done.stdout
        assert "make the folder writable" in done.stdout


def test_two_writers(pool_path, identity):
    with PoolWriter.create_or_open(pool_path, identity()):
        with pytest.raises(BusyError) as caught:
            PoolWriter.create_or_open(pool_path, identity())
        assert f"process {os.getpid()} on host " in caught.value.message
        assert caught.value.exit_code == 7
        code = """
            import sys
            from offline_rlvr.pool import PoolWriter
            try:
                PoolWriter.create_or_open(sys.argv[1], {"group_size": 2, "vocab_size": 9})
            except Exception as error:
                print(type(error).__name__, error)
        """
        done = python(code, pool_path)
        assert f"BusyError {pool_path} is being written by process {os.getpid()}" in done.stdout
        Pool.open(pool_path)
    PoolWriter.create_or_open(pool_path, identity()).close()


def test_lock_of_a_dead_process_blocks_nobody(pool_path, identity):
    code = """
        import json, os, signal, sys
        from offline_rlvr.pool import PoolWriter
        writer = PoolWriter.create_or_open(sys.argv[1], json.loads(sys.argv[2]))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert python(code, pool_path, json.dumps(identity())).returncode == -signal.SIGKILL
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        assert writer.commit == 2


def test_lock_is_released_when_opening_fails(pool_path, identity):
    (pool_path / "samples/part-00000001.parquet").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(DataError, match="part-00000001"):
            PoolWriter.create_or_open(pool_path, identity())


def test_file_system_without_hard_links(tmp_path, identity, group, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with PoolWriter.create_or_open(tmp_path / "p", identity()) as writer:
        writer.append([group(0)], "exact-1")
        (tmp_path / "p/commits/00000002.json").write_text("somebody else's")
        with pytest.raises(DataError, match=r"00000002\.json exists already"):
            writer.append([group(1)], "exact-1")
    assert (tmp_path / "p/commits/00000002.json").read_text() == "somebody else's"
    (tmp_path / "p/commits/00000002.json").unlink()
    assert len(Pool.open(tmp_path / "p")) == 1


def test_a_commit_number_taken_by_someone_else(pool_path, identity, group):
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        (pool_path / "commits/00000003.json").write_text("somebody else's")
        with pytest.raises(DataError, match="another program wrote into this folder"):
            writer.append([group(10)], "exact-1")
    assert (pool_path / "commits/00000003.json").read_text() == "somebody else's"
