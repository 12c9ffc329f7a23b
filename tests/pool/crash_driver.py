"""Builds a pool and dies on the way, at every call that touches the disk.

    python crash_driver.py kill FOLDER     SIGKILL before the n-th call, n = 1, 2, ... to the end
    python crash_driver.py image FOLDER    what a power cut before the n-th call would leave

The scenario is deterministic: a pool finished after any number of crashes has the hash of an
undisturbed one. All work is done in forked children; the parent imports once and touches nothing.
Run by test_pool_crash.py.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from offline_rlvr import durable
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.records import Group, Problem, Response, Verdict

IDENTITY = {"group_size": 2, "vocab_size": 100}
COMMITS = 2
CALLS = ("write", "fsync", "replace", "link", "unlink", "mkdir")
REAL = {name: getattr(os, name) for name in CALLS}
# A SIGKILL spares the page cache and the power cut is simulated: waiting for a disk adds nothing.
REAL["fsync"] = os.fsync = lambda descriptor: None


def group(i: int) -> Group:
    responses = tuple(Response((i, 5, 2), (-0.5, -1e-8, -3.0), f"r{j}", "stop") for j in range(2))
    verdicts = (Verdict("correct"), Verdict("incorrect"))
    return Group(i, Problem(str(i), f"q{i}", "7"), (1, 2), responses, verdicts)


def scenario(root: Path, acknowledge: Callable[[int], object]) -> None:
    with PoolWriter.create_or_open(root, IDENTITY) as writer:
        while writer.commit < COMMITS:
            i = writer.commit * 2
            acknowledge(writer.append([group(i), group(i + 1)], "exact-1", {"duplicate": 1}))
        writer.finish()


def watch(
    before: Callable[[], object], after: Callable[[str, tuple], object] | None = None
) -> None:
    """Run `before` ahead of every call that touches the disk, and `after` behind it."""
    # Several writes a file, so that a kill also lands in the middle of one.
    durable.WRITE_CHUNK = 700

    def wrap(name: str) -> Callable:
        def call(*args, **kwargs):
            before()
            result = REAL[name](*args, **kwargs)
            if after is not None:
                after(name, args)
            return result

        return call

    for name in CALLS:
        setattr(os, name, wrap(name))


def in_child(work: Callable[[int], object]) -> tuple[int, list[int]]:
    """Exit status of a forked child, and the numbers it wrote to the pipe it is given."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work(write)
        except BaseException:  # noqa: BLE001 - a child reports by its exit status
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        numbers = [int(line) for line in pipe]
    return os.waitpid(pid, 0)[1], numbers


def until(n: int, root: Path) -> Callable[[int], None]:
    """The scenario with a SIGKILL before call n."""

    def work(pipe: int) -> None:
        left = [n]

        def before() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        watch(before)
        scenario(root, lambda commit: REAL["write"](pipe, f"{commit}\n".encode()))

    return work


def check(root: Path, acknowledged: int) -> None:
    """A reader sees every acknowledged commit, perhaps one more, and nothing partial."""
    if not (root / "pool.json").exists():
        assert acknowledged == 0
        return
    pool = Pool.open(root)
    assert acknowledged <= pool.commit <= acknowledged + 1, (acknowledged, pool.commit)
    assert pool.index.group_ids.tolist() == list(range(2 * pool.commit))
    pool.verify()


def finish(root: Path, pool_hash: str) -> None:
    """Typing the same command again ends in the same pool, with nothing left over."""
    scenario(root, lambda _: None)
    assert Pool.open(root).hash == pool_hash
    names = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
    parts = {f"part-{i:08d}.parquet" for i in range(1, COMMITS + 1)}
    expected = {"README.md", "pool.json", ".lock", ".lock-owner.json"}
    expected |= {f"commits/{i:08d}.json" for i in range(1, COMMITS + 1)}
    expected |= {f"{folder}/{p}" for folder in ("samples", "grades/exact-1") for p in parts}
    assert names == expected, names ^ expected


def undisturbed(base: Path) -> str:
    root = base / "undisturbed"
    status, _ = in_child(lambda _: scenario(root, lambda _: None))
    assert status == 0
    return Pool.open(root).hash


def kill(base: Path) -> dict:
    pool_hash, n, killed = undisturbed(base), 0, 0
    while True:
        n += 1
        root = base / f"kill-{n}"
        status, numbers = in_child(until(n, root))
        acknowledged = max([0, *numbers])
        if status == 0:
            assert acknowledged == COMMITS
            return {"kills": killed}
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        killed += 1
        if n % 3 == 0:
            # Killed again while resuming, at another place.
            assert in_child(lambda _, r=root, a=acknowledged: check(r, a))[0] == 0, f"kill {n}"
            _, numbers = in_child(until(1 + 7 * n % 23, root))
            acknowledged = max([acknowledged, *numbers])

        def resume(_: int, root: Path = root, acknowledged: int = acknowledged) -> None:
            check(root, acknowledged)
            finish(root, pool_hash)

        assert in_child(resume)[0] == 0, f"resume after kill {n}"


class Disk:
    """A disk that has only what was fsynced: file contents and folder entries by inode."""

    def __init__(self, base: Path):
        self.base = base
        self.contents: dict[int, bytes] = {}
        self.entries: dict[int, dict[str, int]] = {base.stat().st_ino: {}}
        self.folders: set[int] = {base.stat().st_ino}

    def after(self, name: str, args: tuple) -> None:
        if name == "mkdir":
            self.folders.add(os.stat(args[0]).st_ino)
        if name != "fsync":
            return
        path = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
        inode = path.stat().st_ino
        if path.is_dir():
            self.entries[inode] = {p.name: p.stat().st_ino for p in path.iterdir()}
        else:
            self.contents[inode] = path.read_bytes()

    def image(self, target: Path, *, names: str) -> None:
        """Write what a power cut leaves; unsynced names are `lost`, or had `reached` the disk."""
        pairs = self._walk(self.base, names)
        target.mkdir()
        for relative, inode in pairs:
            path = target / relative
            if inode in self.folders:
                path.mkdir()
            else:
                path.write_bytes(self.contents.get(inode, b""))

    def _walk(self, base: Path, names: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []

        def visit(inode: int, prefix: str) -> None:
            if names == "lost":
                listing = self.entries.get(inode, {})
            else:
                listing = {p.name: p.stat().st_ino for p in (base / prefix).iterdir()}
            for name, child in listing.items():
                found.append((prefix + name, child))
                if child in self.folders:
                    visit(child, f"{prefix}{name}/")

        visit(base.stat().st_ino, "")
        return found


def image(base: Path) -> dict:
    pool_hash = undisturbed(base)
    live, images = base / "live", base / "images"
    live.mkdir()
    images.mkdir()

    def work(pipe: int) -> None:
        disk, acknowledged, busy = Disk(live), [0], [False]

        def before() -> None:
            if busy[0]:
                return
            busy[0] = True
            number = len(list(images.iterdir())) // 2
            for names in ("lost", "reached"):
                disk.image(images / f"{names}-{number:04d}-{acknowledged[0]}", names=names)
            busy[0] = False

        watch(before, lambda name, args: None if busy[0] else disk.after(name, args))
        scenario(live / "pool", lambda commit: acknowledged.__setitem__(0, commit))
        before()

    assert in_child(work)[0] == 0
    different: dict[tuple, Path] = {}
    for path in sorted(images.iterdir(), key=lambda p: int(p.name.rsplit("-", 1)[1])):
        files = sorted(p for p in path.rglob("*") if p.is_file())
        different[tuple((str(p.relative_to(path)), p.read_bytes()) for p in files)] = path
    for path in different.values():
        # The last of equal images has the most acknowledged.
        acknowledged = int(path.name.rsplit("-", 1)[1])

        def verify(_: int, root: Path = path / "pool", acknowledged: int = acknowledged) -> None:
            check(root, acknowledged)
            finish(root, pool_hash)

        assert in_child(verify)[0] == 0, path.name
    return {"images": len(different)}


if __name__ == "__main__":
    print(json.dumps({"kill": kill, "image": image}[sys.argv[1]](Path(sys.argv[2]))))
