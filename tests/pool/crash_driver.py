"""Builds a pool and dies on the way, at every call that touches the disk.

    python crash_driver.py kill FOLDER     SIGKILL before the n-th call, n = 1, 2, ... to the end
    python crash_driver.py image FOLDER    what a power cut before the n-th call would leave
    python crash_driver.py repair FOLDER   `kill` for the repair of a damaged pool
    python crash_driver.py repair_image FOLDER   `image` for it
    python crash_driver.py merge FOLDER    `kill` for merging two slices

The scenario is deterministic: a pool finished after any number of crashes has the hash of an
undisturbed one. All work is done in forked children; the parent imports once and touches nothing.
Run by test_pool_crash.py.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from offline_rlvr import durable
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool import merge as merging
from offline_rlvr.pool import repair as repairing
from offline_rlvr.records import Group, Problem, Response, Verdict

IDENTITY = {"group_size": 2, "vocab_size": 100}
COMMITS = 2
CALLS = ("write", "fsync", "replace", "rename", "link", "unlink", "mkdir")
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


def until(n: int, work: Callable[[Callable[[int], object]], object]) -> Callable[[int], None]:
    """The work with a SIGKILL before call n; it is given a function to acknowledge commits with."""

    def dying(pipe: int) -> None:
        left = [n]

        def before() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        watch(before)
        work(lambda commit: REAL["write"](pipe, f"{commit}\n".encode()))

    return dying


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
    expected = {"README.md", "pool.json", ".lock"}
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
        status, numbers = in_child(until(n, lambda ack, r=root: scenario(r, ack)))
        acknowledged = max([0, *numbers])
        if status == 0:
            assert acknowledged == COMMITS
            return {"kills": killed}
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        killed += 1
        if n % 3 == 0:
            # Killed again while resuming, at another place.
            assert in_child(lambda _, r=root, a=acknowledged: check(r, a))[0] == 0, f"kill {n}"
            again = until(1 + 7 * n % 23, lambda ack, r=root: scenario(r, ack))
            _, numbers = in_child(again)
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
        self.entries: dict[int, dict[str, int]] = {}
        self.folders: set[int] = set()
        for path in (base, *base.rglob("*")):  # what was there before is on the disk
            if path.is_dir():
                self.folders.add(path.stat().st_ino)
            self._synced(path)

    def after(self, name: str, args: tuple) -> None:
        if name == "mkdir":
            self.folders.add(os.stat(args[0]).st_ino)
        if name != "fsync":
            return
        self._synced(Path(os.readlink(f"/proc/self/fd/{args[0]}")))

    def _synced(self, path: Path) -> None:
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


def images_of(live: Path, work: Callable[[Callable[[int], object]], object]) -> list[Path]:
    """What a power cut before each call could leave of `live`, no image twice.

    The name of an image ends in the number of the last commit that `work` had acknowledged by then.
    """
    images = live.parent / "images"
    images.mkdir()

    def dying(_: int) -> None:
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
        work(lambda commit: acknowledged.__setitem__(0, commit))
        before()

    assert in_child(dying)[0] == 0
    different: dict[tuple, Path] = {}
    for path in sorted(images.iterdir(), key=lambda p: int(p.name.rsplit("-", 1)[1])):
        files = sorted(p for p in path.rglob("*") if p.is_file())
        # The last of equal images has the most acknowledged.
        different[tuple((str(p.relative_to(path)), p.read_bytes()) for p in files)] = path
    return list(different.values())


def image(base: Path) -> dict:
    pool_hash = undisturbed(base)
    live = base / "live"
    live.mkdir()
    found = images_of(live, lambda ack: scenario(live / "pool", ack))
    for path in found:
        acknowledged = int(path.name.rsplit("-", 1)[1])

        def verify(_: int, root: Path = path / "pool", acknowledged: int = acknowledged) -> None:
            check(root, acknowledged)
            finish(root, pool_hash)

        assert in_child(verify)[0] == 0, path.name
    return {"images": len(found)}


def every_kill(
    base: Path, prepare: Callable[[Path], object], work: Callable[[Path], object]
) -> dict:
    """Kill `work` before every call, then let it end: always the pool and files of no kill."""
    whole = base / "whole"
    prepare(whole)
    assert in_child(lambda _: work(whole))[0] == 0
    expected, n = contents(whole), 0
    while True:
        n += 1
        root = base / f"kill-{n}"
        prepare(root)
        status, _ = in_child(until(n, lambda _, r=root: work(r)))
        if status != 0:
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            assert in_child(lambda _, r=root: work(r))[0] == 0, f"again after kill {n}"
        found = contents(root)
        assert found == expected, (n, found.keys() ^ expected.keys())
        if status == 0:
            return {"kills": n - 1}


def contents(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".lock") and path.name != "README.md"
    }


def damaged(original: Path) -> None:
    """Two verifiers; the samples of the first commit and grades of the third are damaged."""
    with PoolWriter.create_or_open(original, IDENTITY) as writer:
        for i in range(0, 6, 2):
            writer.append([group(i), group(i + 1)], "exact-1")
        writer.append_grades("other", {i: group(i).verdicts for i in range(6)})
    for name in ("samples/part-00000001.parquet", "grades/exact-1/part-00000003.parquet"):
        (original / name).write_bytes(b"no longer")


def repaired(root: Path) -> None:
    repairing.repair(root)
    pool = Pool.open(root)
    assert pool.index.group_ids.tolist() == [2, 3, 4, 5]
    assert pool.verifier_id == "other"


def repair(base: Path) -> dict:
    damaged(base / "original")
    return every_kill(base, lambda root: shutil.copytree(base / "original", root), repaired)


def repair_image(base: Path) -> dict:
    """After a power cut and another repair: the same pool, and every damaged byte still there."""
    live = base / "live"
    live.mkdir()
    damaged(live / "pool")
    shutil.copytree(live / "pool", base / "whole")
    assert in_child(lambda _: repaired(base / "whole"))[0] == 0
    expected = split_off_quarantine(base / "whole")
    found = images_of(live, lambda _: repaired(live / "pool"))
    for path in found:
        assert in_child(lambda _, root=path / "pool": repaired(root))[0] == 0, path.name
        assert split_off_quarantine(path / "pool") == expected, path.name
    return {"images": len(found)}


def split_off_quarantine(root: Path) -> tuple[dict[str, bytes], set[bytes]]:
    """The pool's files, and what lies in its quarantine under whatever name."""
    files = contents(root)
    aside = {name for name in files if name.startswith("quarantine/")}
    return {n: data for n, data in files.items() if n not in aside}, {files[n] for n in aside}


def merge(base: Path) -> dict:
    """Two slices of two commits; the second has an empty last commit."""
    for number in (1, 2):
        identity = {**IDENTITY, "slice": [number, 2]}
        with PoolWriter.create_or_open(base / f"slice-{number}", identity) as writer:
            writer.append([group(number - 1)], "exact-1", {"duplicate": 1})
            writer.append([group(number + 1)] * (2 - number), "exact-1", {"prompt_too_long": 1})

    def end(root: Path) -> None:
        if not (root / "pool").exists():  # as a whole or not at all
            merging.merge(root / "pool", [base / "slice-1", base / "slice-2"])
        assert [path.name for path in root.iterdir()] == ["pool"]
        assert Pool.open(root / "pool").index.group_ids.tolist() == [0, 1, 2]

    return every_kill(base, Path.mkdir, end)


if __name__ == "__main__":
    modes = (kill, image, repair, repair_image, merge)
    mode = next(mode for mode in modes if mode.__name__ == sys.argv[1])
    print(json.dumps(mode(Path(sys.argv[2]))))
