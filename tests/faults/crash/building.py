"""Crashes of a build, a repair and a merge: `python building.py MODE FOLDER [STEP [FIRST]]`.

    kill           SIGKILL before the n-th call of a build
    image          what a power cut before it would leave
    repair, repair_image   the same for the repair of a damaged pool
    merge          SIGKILL while two slices are merged

Run by `tests/pool/test_pool_crash.py`.
"""

from pathlib import Path

from harness import Acknowledge, Scenario, contents, every_image, every_kill, run

from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool import merge as merging
from offline_rlvr.pool import repair as repairing
from offline_rlvr.records import Group, Problem, Response, Verdict

IDENTITY = {"group_size": 2, "vocab_size": 100}
COMMITS = 2


def group(i: int) -> Group:
    responses = tuple(Response((i, 5, 2), (-0.5, -1e-8, -3.0), f"r{j}", "stop") for j in range(2))
    verdicts = (Verdict("correct"), Verdict("incorrect"))
    return Group(i, Problem(str(i), f"q{i}", "7"), (1, 2), responses, verdicts)


def build(root: Path, acknowledge: Acknowledge) -> None:
    with PoolWriter.create_or_open(root, IDENTITY) as writer:
        while writer.commit < COMMITS:
            i = writer.commit * 2
            acknowledge(writer.append([group(i), group(i + 1)], "exact-1", {"duplicate": 1}))
        writer.finish()


def check(root: Path, acknowledged: int) -> None:
    """A reader sees every acknowledged commit, perhaps one more, and nothing partial."""
    if not (root / "pool.json").exists():
        assert acknowledged == 0
        return
    pool = Pool.open(root)
    assert acknowledged <= pool.commit <= acknowledged + 1, (acknowledged, pool.commit)
    assert pool.index.group_ids.tolist() == list(range(2 * pool.commit))
    pool.verify()


def files(root: Path) -> dict[str, bytes]:
    """Every file but the lock's and the card, which shows when it was written."""
    return {
        name: data
        for name, data in contents(root).items()
        if not name.rpartition("/")[2].startswith(".lock") and name != "README.md"
    }


def damage(root: Path) -> None:
    """Two verifiers; the samples of the first commit and grades of the third are damaged."""
    with PoolWriter.create_or_open(root, IDENTITY) as writer:
        for i in range(0, 6, 2):
            writer.append([group(i), group(i + 1)], "exact-1")
        writer.append_grades("other", {i: group(i).verdicts for i in range(6)})
    for name in ("samples/part-00000001.parquet", "grades/exact-1/part-00000003.parquet"):
        (root / name).write_bytes(b"no longer")


def repair(root: Path, acknowledge: Acknowledge) -> None:
    repairing.repair(root)
    pool = Pool.open(root)
    assert pool.index.group_ids.tolist() == [2, 3, 4, 5]
    assert pool.verifier_id == "other"


def files_whatever_the_quarantine_calls_them(root: Path) -> tuple[dict[str, bytes], set[bytes]]:
    found = files(root)
    aside = {name for name in found if name.startswith("quarantine/")}
    return {n: d for n, d in found.items() if n not in aside}, {found[n] for n in aside}


def slice_in_two(base: Path) -> None:
    """Two slices of two commits; the second has an empty last commit."""
    for number in (1, 2):
        identity = {**IDENTITY, "slice": [number, 2]}
        with PoolWriter.create_or_open(base / f"slice-{number}", identity) as writer:
            writer.append([group(number - 1)], "exact-1", {"duplicate": 1})
            writer.append([group(number + 1)] * (2 - number), "exact-1", {"prompt_too_long": 1})


def merge(root: Path, acknowledge: Acknowledge) -> None:
    slices = [root.parent / f"slice-{number}" for number in (1, 2)]
    if not (root / "pool").exists():  # as a whole or not at all
        merging.merge(root / "pool", slices)
    assert [path.name for path in root.iterdir()] == ["pool"]
    assert Pool.open(root / "pool").index.group_ids.tolist() == [0, 1, 2]


def nothing(root: Path, acknowledged: int) -> None:
    """What is left is looked at by going on with it."""


BUILD = Scenario(build, check, files)
REPAIR = Scenario(repair, nothing, files, damage)
REPAIR_AFTER_POWER_CUT = Scenario(repair, nothing, files_whatever_the_quarantine_calls_them, damage)
MERGE = Scenario(merge, nothing, files)


def merge_kill(base: Path, step: int, first: int) -> dict[str, int]:
    slice_in_two(base)
    return every_kill(MERGE, base, step, first)


if __name__ == "__main__":
    run(
        {
            "kill": lambda *args: every_kill(BUILD, *args),
            "image": lambda *args: every_image(BUILD, *args),
            "repair": lambda *args: every_kill(REPAIR, *args),
            "repair_image": lambda *args: every_image(REPAIR_AFTER_POWER_CUT, *args),
            "merge": merge_kill,
        }
    )
