"""Dies at every call that touches the disk, by SIGKILL or by power cut, and looks at what is left.

What is tried is a `Scenario`; `building.py` and `training.py` hold those of pools and runs, and are
run as scripts by the tests. All work is done in forked children; the parent imports once and
touches nothing.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from offline_rlvr import durable

CALLS = ("write", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")
REAL = {name: getattr(os, name) for name in CALLS}
# A SIGKILL spares the page cache and the power cut is simulated: waiting for a disk adds nothing.
REAL["fsync"] = os.fsync = lambda descriptor: None

#: Tells what was made durable so far, as a number that grows.
Acknowledge = Callable[[int], object]


@dataclass(frozen=True)
class Scenario:
    """Something that is done in a folder and survives whatever happens to it.

    Attributes:
        work: Does it from the beginning or from where it was stopped.
        check: Looks at a folder that a crash left; is told what had been acknowledged.
        state: What must be the same after any crashes, once `work` was done to its end.
        prepare: Makes the folder to start from.
    """

    work: Callable[[Path, Acknowledge], object]
    check: Callable[[Path, int], object]
    state: Callable[[Path], object]
    prepare: Callable[[Path], object] = Path.mkdir

    def start(self, root: Path) -> None:
        """Make the folder to start from."""
        assert in_child(lambda _: self.prepare(root))[0] == 0

    def finish(self, root: Path, expected: object) -> None:
        """Typing the same command again ends in the same state."""
        self.work(root, lambda _: None)
        found = self.state(root)
        if found != expected and isinstance(found, dict) and isinstance(expected, dict):
            names = [n for n in {*found, *expected} if found.get(n) != expected.get(n)]
            raise AssertionError(f"not as without a crash: {sorted(names)}")
        assert found == expected, (found, expected)

    def undisturbed(self, base: Path) -> object:
        """The state that `work` ends in when nothing happens."""
        root = base / "undisturbed"
        self.start(root)
        assert in_child(lambda _: self.work(root, lambda _: None))[0] == 0
        return self.state(root)


def every_kill(scenario: Scenario, base: Path, step: int = 1, first: int = 1) -> dict[str, int]:
    """SIGKILL before the n-th call, n = first, first + step, ... until none is left.

    Every third time it is killed again while it goes on, at another place.
    """
    expected, n, killed = scenario.undisturbed(base), first, 0
    while True:
        root, acknowledged = base / f"kill-{n}", 0
        scenario.start(root)
        statuses = []
        for at in [n] if n % 3 else [n, 1 + 7 * n % 23]:
            status, numbers = in_child(_until(at, scenario, root))
            acknowledged = max([acknowledged, *numbers])
            assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
            statuses.append(status)
            check = in_child(lambda _, r=root, a=acknowledged: scenario.check(r, a))
            assert check[0] == 0, f"what kill {n} left"
        ended = in_child(lambda _, r=root: scenario.finish(r, expected))
        assert ended[0] == 0, f"after kill {n}"
        if statuses[0] == 0:
            return {"kills": killed, "calls": n - 1}
        killed += 1
        shutil.rmtree(root)
        n += step


def every_image(scenario: Scenario, base: Path, step: int = 1, first: int = 1) -> dict[str, int]:
    """Go on from what a power cut before every call could leave, no image twice."""
    expected = scenario.undisturbed(base)
    live = base / "live"
    live.mkdir()
    scenario.start(live / "root")
    found = _images_of(live, lambda acknowledge: scenario.work(live / "root", acknowledge))
    for path in found[first - 1 :: step]:
        acknowledged = int(path.name.rsplit("-", 1)[1])

        def survive(_: int, root: Path = path / "root", acknowledged: int = acknowledged) -> None:
            root.mkdir(exist_ok=True)
            scenario.check(root, acknowledged)
            scenario.finish(root, expected)

        assert in_child(survive)[0] == 0, path.name
    return {"images": len(found)}


def watch(
    folder: Path,
    before: Callable[[], object],
    after: Callable[[str, tuple], object] | None = None,
) -> None:
    """Run `before` ahead of every call that touches the disk, and `after` behind it.

    Files that a library writes by itself are seen when they are opened and when they are synced.
    """
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

    def opened(event: str, args: tuple) -> None:
        if event != "open" or not str(args[0]).startswith(str(folder)):
            return
        if args[2] & (os.O_WRONLY | os.O_RDWR):
            before()

    sys.addaudithook(opened)


def in_child(work: Callable[[int], object]) -> tuple[int, list[int]]:
    """Exit status of a forked child, and the numbers it wrote to the pipe it is given."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.dup2(2, 1)  # the result alone goes to the standard output
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


def _until(n: int, scenario: Scenario, root: Path) -> Callable[[int], None]:
    """The work with a SIGKILL before call n."""

    def dying(pipe: int) -> None:
        left = [n]

        def before() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        watch(root, before)
        scenario.work(root, lambda number: REAL["write"](pipe, f"{number}\n".encode()))

    return dying


class Disk:
    """A disk that has only what was fsynced: file contents and folder entries by inode."""

    def __init__(self, base: Path):
        self.base = base
        self.contents: dict[int, bytes] = {}
        self.entries: dict[int, dict[str, int]] = {}
        self.folders: set[int] = set()
        self.held: dict[int, int] = {}  # open, so that no inode number is used a second time
        for path in (base, *base.rglob("*")):  # what was there before is on the disk
            if path.is_dir():
                self.folders.add(path.stat().st_ino)
            self._synced(path)

    def after(self, name: str, args: tuple) -> None:
        if name == "mkdir":
            self.folders.add(os.stat(args[0]).st_ino)
        if name == "fsync":
            self._synced(Path(os.readlink(f"/proc/self/fd/{args[0]}")))

    def _synced(self, path: Path) -> None:
        inode = path.stat().st_ino
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
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


def _images_of(live: Path, work: Callable[[Acknowledge], object]) -> list[Path]:
    """What a power cut before each call could leave of `live`, no image twice.

    The name of an image ends in the number that `work` had acknowledged by then.
    """
    images = live.parent / "images"
    images.mkdir()

    def dying(_: int) -> None:
        disk, acknowledged, busy, count, seen = Disk(live), [0], [False], [0], {}

        def before() -> None:
            if busy[0]:
                return
            busy[0] = True
            for names in ("lost", "reached"):
                path = images / f"{names}-{count[0]:05d}-{acknowledged[0]}"
                disk.image(path, names=names)
                key = hash(tuple(contents(path).items()))
                if key in seen:  # the last of equal images has the most acknowledged
                    _remove(seen[key])
                seen[key] = path
            count[0] += 1
            busy[0] = False

        watch(live, before, lambda name, args: None if busy[0] else disk.after(name, args))
        work(lambda number: acknowledged.__setitem__(0, number))
        before()

    assert in_child(dying)[0] == 0
    return sorted(images.iterdir(), key=lambda path: path.name.split("-")[1])


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        REAL["rmdir"](path) if path.is_dir() else REAL["unlink"](path)
    REAL["rmdir"](folder)


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a folder by its path."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def run(modes: dict[str, Callable[[Path, int, int], dict[str, int]]]) -> None:
    """`python SCRIPT MODE FOLDER [STEP [FIRST]]`; prints what was tried as JSON."""
    step, first = (*map(int, sys.argv[3:5]), 1, 1)[:2]
    print(json.dumps(modes[sys.argv[1]](Path(sys.argv[2]), step, first)))
