"""The index of a pool: O(groups) arrays, read without decoding a token."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offline_rlvr.errors import DataError
from offline_rlvr.pool.commits import FileEntry
from offline_rlvr.pool.decode import Source, tables
from offline_rlvr.pool.rows import FINISH_REASONS, STATUSES
from offline_rlvr.pool.snapshot import Snapshot
from offline_rlvr.records import REWARD_OF_STATUS

#: Status code of a group that the chosen verifier has not graded (yet).
UNGRADED = len(STATUSES)
STATUS_NAMES = (*STATUSES, "ungraded")


@dataclass(frozen=True)
class PoolIndex:
    """One entry per group, in ascending order of id. G groups, K responses each.

    Attributes:
        group_ids: int64 [G].
        rewards: float64 [G, K]; NaN = could not be scored.
        statuses: uint8 [G, K]; positions in `STATUS_NAMES`.
        response_lengths: int32 [G, K] tokens.
        prompt_lengths: int32 [G] tokens.
        truncated: bool [G, K]; cut at the length limit.
        files: int32 [G]; positions in the pool's list of samples files.
        row_groups: int32 [G]; within the file.
        rows: int32 [G]; within the row group.
    """

    group_ids: np.ndarray
    rewards: np.ndarray
    statuses: np.ndarray
    response_lengths: np.ndarray
    prompt_lengths: np.ndarray
    truncated: np.ndarray
    files: np.ndarray
    row_groups: np.ndarray
    rows: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """bool [G, K]: status `correct`."""
        return self.statuses == STATUSES.index("correct")

    @property
    def scored(self) -> np.ndarray:
        """bool [G]: every response has a reward."""
        return ~np.any(np.isnan(self.rewards), axis=1)

    @property
    def mixed(self) -> np.ndarray:
        """bool [G]: every response has a reward, and at least two rewards differ."""
        return self.scored & np.any(self.rewards != self.rewards[:, :1], axis=1)


def build_index(snapshot: Snapshot, verifier_id: str | None) -> PoolIndex:
    """Index every group of a snapshot with one verifier's grades.

    Raises:
        DataError: Wrong K, repeated groups, impossible values; names file and row.
    """
    k = snapshot.group_size
    files = [entry for entry in snapshot.files if entry.verifier_id is None]
    columns = ("group_ids", "prompt_lengths", "response_lengths", "truncated")
    columns = (*columns, "files", "row_groups", "rows")
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros((0, k), np.int32))
    empty = (*empty, np.zeros((0, k), bool), *(np.zeros(0, np.int32) for _ in range(3)))
    blocks = [empty]
    for number, entry in enumerate(files):
        blocks += _samples_blocks(snapshot, entry, number)
    joined = dict(zip(columns, map(np.concatenate, zip(*blocks, strict=True)), strict=True))
    order = np.argsort(joined["group_ids"], kind="stable")
    joined = {name: value[order] for name, value in joined.items()}
    _refuse_repeated(joined["group_ids"], "samples")
    rewards, statuses = _grades(snapshot, joined["group_ids"], verifier_id)
    return PoolIndex(rewards=rewards, statuses=statuses, **joined)


def group_ids_of(snapshot: Snapshot, verifier_id: str | None) -> np.ndarray:
    """Sorted ids of the groups with samples (verifier None) or graded by a verifier, int64."""
    found = [np.zeros(0, np.int64)]
    for entry in snapshot.files:
        if entry.verifier_id == verifier_id:
            found += [s.group_ids(t) for s, t in tables(snapshot, entry, ["group_id"])]
    ids = np.sort(np.concatenate(found))
    _refuse_repeated(ids, "samples" if verifier_id is None else f"grades/{verifier_id}")
    return ids


def part_group_ids(snapshot: Snapshot, entry: FileEntry) -> np.ndarray:
    """Ids in one file, int64, every value that an index would take from it checked.

    Raises:
        DataError: As `build_index`, as far as one file shows it.
    """
    if entry.verifier_id is None:
        found = [block[0] for block in _samples_blocks(snapshot, entry, 0)]
    else:
        found = []
        for source, table in tables(snapshot, entry, ["group_id", "rewards", "statuses"]):
            _verdicts(source, table, snapshot.group_size)
            found.append(source.group_ids(table))
    return np.concatenate(found)


def locate(ascending: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of each wanted id in ascending ids, and whether it is there: O(wanted log ids)."""
    at = np.searchsorted(ascending, wanted)
    if not len(ascending):
        return at, np.zeros(len(wanted), bool)
    return at, ascending[np.minimum(at, len(ascending) - 1)] == wanted


def _samples_blocks(snapshot: Snapshot, entry: FileEntry, number: int) -> Iterator[tuple]:
    k = snapshot.group_size
    names = ["group_id", "prompt_length", "response_lengths", "finish_reason"]
    for source, table in tables(snapshot, entry, names):
        ids = source.group_ids(table)
        prompt = source.numbers(table, "prompt_length")
        lengths = source.lists(table, "response_lengths", k).to_numpy().reshape(-1, k)
        reasons = source.lists(table, "finish_reason", k)
        codes = _codes(reasons, FINISH_REASONS, k)
        bad = (prompt < 1) | (lengths < 1).any(1) | (codes == len(FINISH_REASONS)).any(1)
        if bad.any():
            row = int(bad.argmax())
            raise DataError(
                f"{source.row(row)}: group {ids[row]} has an empty prompt, "
                "an empty response or an unknown finish_reason"
            )
        truncated = codes == FINISH_REASONS.index("length")
        where = (np.full(len(ids), number, np.int32), np.full(len(ids), source.row_group, np.int32))
        yield ids, prompt, lengths, truncated, *where, np.arange(len(ids), dtype=np.int32)


def _grades(
    snapshot: Snapshot, group_ids: np.ndarray, verifier_id: str | None
) -> tuple[np.ndarray, np.ndarray]:
    k = snapshot.group_size
    rewards = np.full((len(group_ids), k), np.nan)
    statuses = np.full((len(group_ids), k), UNGRADED, np.uint8)
    if verifier_id is None:
        return rewards, statuses
    graded = [np.zeros(0, np.int64)]
    for entry in snapshot.files:
        if entry.verifier_id != verifier_id:
            continue
        for source, table in tables(snapshot, entry, ["group_id", "rewards", "statuses"]):
            ids = source.group_ids(table)
            at, known = locate(group_ids, ids)
            if not known.all():
                row = int(known.argmin())
                raise DataError(f"{source.row(row)}: group {ids[row]} is not in samples")
            graded.append(ids)
            rewards[at], statuses[at] = _verdicts(source, table, k)
    _refuse_repeated(np.sort(np.concatenate(graded)), f"grades/{verifier_id}")
    return rewards, statuses


def _verdicts(source: Source, table: pa.Table, k: int) -> tuple[np.ndarray, np.ndarray]:
    values = source.lists(table, "rewards", k, nulls=True)
    absent = values.is_null().to_numpy(zero_copy_only=False).reshape(-1, k)
    rewards = values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, k)
    names = source.lists(table, "statuses", k)
    codes = _codes(names, STATUSES, k)
    rewarded = np.isin(codes, [STATUSES.index(status) for status in REWARD_OF_STATUS])
    bad = (codes == UNGRADED) | (rewarded == absent) | (~absent & ~np.isfinite(rewards))
    if bad.any():
        row, response = (int(i) for i in np.argwhere(bad)[0])
        reward = None if absent[row, response] else rewards[row, response]
        raise DataError(
            f"{source.row(row)}, response {response}: reward {reward} "
            f"with status {names[row * k + response].as_py()!r}"
        )
    return rewards, codes


def _codes(values: pa.Array, names: tuple[str, ...], k: int) -> np.ndarray:
    """uint8 [rows, K]: positions in `names`; len(names) for any other value."""
    found = pc.call_function("index_in", [values], pc.SetLookupOptions(pa.array(names)))
    return found.fill_null(len(names)).to_numpy().astype(np.uint8).reshape(-1, k)


def _refuse_repeated(ids: np.ndarray, where: str) -> None:
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if len(repeated):
        raise DataError(f"group {repeated[0]} is stored more than once in {where}")
