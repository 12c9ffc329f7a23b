"""The pools of `pool build --slice I/N` as one pool, made whole or not at all.

Slice I holds the positions p of the common draw order with p mod N = I - 1. Part files are copied
as they are, one commit for each commit of a slice, slices in the order of their numbers: the same
slices give the same pool, however they are listed.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_rlvr.durable import file_sha256, make_folder, publish_folder, write_file
from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.pool.card import CARD_NAME, render
from offline_rlvr.pool.commits import COMMIT_FOLDER, FileEntry, seal
from offline_rlvr.pool.committing import add_commit, part_path
from offline_rlvr.pool.index import group_ids_of
from offline_rlvr.pool.opening import differences
from offline_rlvr.pool.reader import Pool, grades_in_use
from offline_rlvr.pool.schema import SCHEMA_VERSION
from offline_rlvr.pool.snapshot import (
    IDENTITY_NAME,
    REPAIR,
    Snapshot,
    read_commits,
    take_snapshot,
)
from offline_rlvr.pool.summary import funnel
from offline_rlvr.pool.timing import add_timing, read_timing

#: The identity's entry that tells the slices of one pool apart: [I, N], I from 1.
SLICE = "slice"


@dataclass(frozen=True)
class Merged:
    """What became one pool.

    Attributes:
        groups: Its groups.
        slices: Numbers of the slices, ascending, from 1.
        of: N.
        ungraded: Verifier -> how many groups it has not graded, where there are some.
        in_use: Slice -> verifier whose grades it used, when they do not all use the same.
    """

    groups: int
    slices: list[int]
    of: int
    ungraded: dict[str, int]
    in_use: dict[int, str | None]


def merge(output: Path, paths: Sequence[Path], *, allow_missing: bool = False) -> Merged:
    """Copy slices into a new pool.

    Args:
        output: The pool to make.
        paths: Pools of different slices of one job, in any order.
        allow_missing: Go without some slices; `pool build` then samples what they lack.

    Raises:
        ConfigError: `output` exists, a pool is no slice, a slice is given twice or is missing.
        IncompatibleError: The slices are not of one job; lists each difference.
        DataError: A slice is damaged, or holds groups of another slice.
        ResourceError: The copy cannot be written; there is no `output`.
    """
    if output.exists() or output.is_symlink():
        raise ConfigError(f"{output} exists already", hint="choose another name")
    slices = _numbered([take_snapshot(path, "size") for path in paths])
    snapshots = [slices[number] for number in sorted(slices)]
    of = snapshots[0].identity[SLICE][1]
    absent = sorted(set(range(1, of + 1)) - slices.keys())
    if absent and not allow_missing:
        names = ", ".join(f"{number}/{of}" for number in absent)
        raise ConfigError(f"missing slices: {names}", hint="name them, or add --allow-missing")
    for number, snapshot in slices.items():
        _check_residues(snapshot, number, of)
    make_folder(output.parent)
    publish_folder(output, lambda folder: _fill(folder, output.resolve().name, snapshots))
    return _summary(take_snapshot(output, "size"), slices, of)


def _numbered(snapshots: Sequence[Snapshot]) -> dict[int, Snapshot]:
    """The slices by number, all of one job."""
    found: dict[int, Snapshot] = {}
    for snapshot in snapshots:
        number, of = _place(snapshot)
        first = next(iter(found.values()), snapshot)
        lines = differences(_common(first), _common(snapshot))
        if of != first.identity[SLICE][1]:
            lines.insert(0, f"  number of slices: {first.identity[SLICE][1]} -> {of}")
        if lines:
            raise IncompatibleError(
                f"{snapshot.root} is a slice of another job than {first.root}:\n"
                + "\n".join(lines),
                hint="merge slices that were built from one config",
            )
        if number in found:
            raise ConfigError(f"{found[number].root} and {snapshot.root} are both {number}/{of}")
        found[number] = snapshot
    if not found:
        raise ConfigError("no slice was named")
    return found


def _place(snapshot: Snapshot) -> tuple[int, int]:
    match snapshot.identity.get(SLICE):
        case [int(number), int(of)] if 1 <= number <= of:
            return number, of
    raise ConfigError(
        f"{snapshot.root} is not a slice", hint="slices are built with: pool build --slice I/N"
    )


def _common(snapshot: Snapshot) -> dict[str, Any]:
    return {key: value for key, value in snapshot.identity.items() if key != SLICE}


def _check_residues(snapshot: Snapshot, number: int, of: int) -> None:
    ids = group_ids_of(snapshot, None)
    foreign = ids[ids % of != number - 1]
    if len(foreign):
        raise DataError(f"{snapshot.root} is slice {number}/{of}, but it has group {foreign[0]}")


def _fill(folder: Path, title: str, snapshots: Sequence[Snapshot]) -> None:
    for name in (COMMIT_FOLDER, "samples"):
        make_folder(folder / name)
    body = {"schema_version": SCHEMA_VERSION, "identity": _common(snapshots[0])}
    write_file(folder / IDENTITY_NAME, seal(body))
    merged = read_commits(folder)
    for snapshot in snapshots:
        there = {entry.path for entry in snapshot.files}
        for commit, _ in snapshot.log:
            files = [_copy(snapshot, e, merged) for e in commit.files if e.path in there]
            after = max(merged.next_group_id, commit.next_group_id)
            add_commit(merged, files, drops=commit.drops, next_group_id=after)
    used = {grades_in_use(snapshot) for snapshot in snapshots} - {None}
    if len(used) == 1 and grades_in_use(merged) not in used:
        add_commit(merged, verifier_in_use=used.pop())
    timing = read_timing(snapshot.root for snapshot in snapshots)
    if timing.groups:
        add_timing(folder, timing)
    pool = Pool.open(folder, check="size")
    write_file(folder / CARD_NAME, render(pool, funnel(pool), {"title": title}).encode())


def _copy(source: Snapshot, entry: FileEntry, merged: Snapshot) -> FileEntry:
    """The file under the number of the next commit, its hash checked."""
    original = source.root / entry.path
    name = part_path(str(Path(entry.path).parent), merged.commit + 1)
    target = merged.root / name
    make_folder(target.parent)
    shutil.copyfile(original, target)
    if file_sha256(target) != entry.sha256:
        raise DataError(
            f"{original} is damaged: its sha256 is not what its commit says", hint=REPAIR
        )
    return entry.model_copy(update={"path": name})


def _summary(merged: Snapshot, slices: dict[int, Snapshot], of: int) -> Merged:
    rows: Counter[str | None] = Counter()
    for entry in merged.files:
        rows[entry.verifier_id] += entry.rows
    used = {number: grades_in_use(slices[number]) for number in sorted(slices)}
    missing = {name: rows[None] - rows[name] for name in merged.verifier_ids}
    return Merged(
        rows[None],
        sorted(slices),
        of,
        {name: count for name, count in missing.items() if count},
        used if len(set(used.values()) - {None}) > 1 else {},
    )
