"""Crashes of single files and folders: `python files.py MODE FOLDER [STEP [FIRST]]`.

    kill           SIGKILL before the n-th call of work that makes, replaces and removes them
    image          what a power cut before it would leave

Run by `tests/test_durable.py`.
"""

from pathlib import Path

from harness import Acknowledge, Scenario, contents, every_image, every_kill, run

from offline_rlvr import durable

OLD, NEW = b"old" * 500, b"new" * 500
#: Content of a folder, with one inside.
PARTS = {"x": OLD, "deeper/y": NEW}


def fill(folder: Path) -> None:
    (folder / "deeper").mkdir()
    for name, data in PARTS.items():
        (folder / name).write_bytes(data)


def prepare(root: Path) -> None:
    root.mkdir()
    durable.publish_folder(root / "removed", fill)


def work(root: Path, acknowledge: Acknowledge) -> None:
    durable.make_folder(root / "a/b")
    acknowledge(1)
    if not (root / "file").exists():
        durable.write_file(root / "file", OLD)
    acknowledge(2)
    durable.write_file(root / "file", NEW, replace=True)
    acknowledge(3)
    with durable.published_file(root / "streamed", replace=True) as temporary:
        temporary.write_bytes(OLD)
    acknowledge(4)
    if not (root / "published").exists():
        durable.publish_folder(root / "published", fill)
    acknowledge(5)
    if (root / "removed").exists():
        durable.remove_folder(root / "removed")
    durable.remove_leftovers(root)


def check(root: Path, acknowledged: int) -> None:
    """What was acknowledged is there; whatever is there is whole."""
    found = contents(root)
    assert acknowledged < 1 or (root / "a/b").is_dir()
    file = [None, OLD, NEW][0 if acknowledged < 2 else 1 if acknowledged < 3 else 2 :]
    assert found.get("file") in file
    assert found.get("streamed") in ([OLD] if acknowledged >= 4 else [None, OLD])
    for name, needed in (("published", acknowledged >= 5), ("removed", False)):
        if needed or (root / name).exists():
            assert {part: found.get(f"{name}/{part}") for part in PARTS} == PARTS


def state(root: Path) -> dict[str, bytes]:
    return {**contents(root), "folders": str(sorted(p.name for p in root.iterdir())).encode()}


FILES = Scenario(work, check, state, prepare)

if __name__ == "__main__":
    run(
        {
            "kill": lambda *args: every_kill(FILES, *args),
            "image": lambda *args: every_image(FILES, *args),
        }
    )
