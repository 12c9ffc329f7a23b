"""The responses that a run was trained on: which were pushed where, with their text.

The same questions as the queries in `offline_rlvr/trainer/README.md`, answered for the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_rlvr.errors import OfflineRlvrError
from offline_rlvr.pool import GroupArrays, Pool
from offline_rlvr.report.inert import shortened
from offline_rlvr.report.record import ESS_WINDOW, RunRecord
from offline_rlvr.report.verdict import number, percent
from offline_rlvr.trainer.response_files import read_responses

#: Responses shown for each question.
SHOWN = 8
#: Equal responses of a group are told by their log-prob; a group holds at most so many.
MOST_COPIES = 64
#: Rewards from here on are right, as in the diagnostics.
RIGHT_FROM = 0.5


@dataclass(frozen=True)
class Shown:
    """One response: where it stands, its numbers, and its text where the pool is at hand."""

    where: str
    right: bool
    numbers: str
    question: str
    text: str


@dataclass(frozen=True)
class Question:
    """A list of responses with the sentence that sums it up."""

    title: str
    summary: str
    responses: Sequence[Shown]


@dataclass(frozen=True)
class Trained:
    """The section: its lists, and why texts are missing (empty when they are not)."""

    questions: Sequence[Question]
    without_texts: str


def trained_responses(run: RunRecord) -> Trained:
    """What the run's record of responses says.

    Raises:
        DataError: A file of the record is damaged.
    """
    rows = read_responses(run.path)
    if not len(rows["update"]):
        return Trained([], "")
    found = [question for question in (_down(rows), _up(rows), _ess(rows), _q(rows)) if question]
    wanted = np.unique(rows["group_id"][np.concatenate([picked for _, _, picked, _ in found])])
    groups, reason = _texts(run, wanted)
    return Trained(
        [
            Question(title, summary, [_shown(rows, row, groups, beside) for row in picked.tolist()])
            for title, summary, picked, beside in found
        ],
        reason,
    )


#: Title, summary, rows of the record, and what each of all rows shows beside its coefficient.
Found = tuple[str, str, NDArray[np.int64], NDArray[np.str_] | None]


def _down(rows: dict[str, NDArray]) -> Found:
    right = rows["reward"] >= RIGHT_FROM
    pushed = right & (rows["coefficient"] < 0)
    summary = (
        f"{pushed.sum():,} of {right.sum():,} right responses ({percent(_share(pushed, right))}) "
        "had a negative coefficient: the update made them less likely."
    )
    return ("Right responses pushed down", summary, _ends(rows, rows["coefficient"], pushed), None)


def _up(rows: dict[str, NDArray]) -> Found:
    wrong = rows["reward"] < RIGHT_FROM
    pushed = wrong & (rows["coefficient"] > 0)
    summary = (
        f"{pushed.sum():,} of {wrong.sum():,} wrong responses ({percent(_share(pushed, wrong))}) "
        "had a positive coefficient: the update made them more likely."
    )
    return ("Wrong responses pushed up", summary, _ends(rows, -rows["coefficient"], pushed), None)


def _ess(rows: dict[str, NDArray]) -> Found:
    last = rows["update"] > rows["update"].max() - ESS_WINDOW
    log_weight = rows["s"] - rows["s_behavior"]
    weight = np.where(last, np.exp(log_weight - log_weight[last].max()), 0.0)
    square = weight**2 / (weight**2).sum()
    ess = weight.sum() ** 2 / (weight**2).sum()
    picked = _ends(rows, -square, last)
    summary = (
        f"The {last.sum():,} responses of the last {ESS_WINDOW} updates weigh as much as "
        f"{ess:,.0f} equal ones; the {len(picked)} below hold {percent(square[picked].sum())} of "
        "the squared weight."
    )
    shares = np.array([f"{percent(share)} of the squared weight" for share in square])
    return ("Where ESS concentrates", summary, picked, shares)


def _q(rows: dict[str, NDArray]) -> Found | None:
    """Right responses whose Gibbs weight went to the other right ones of their group."""
    right = (rows["reward"] >= RIGHT_FROM) & ~np.isnan(rows["q"])
    keys = np.stack([rows["update"], rows["group_id"]], axis=1)[right]
    if not len(keys):
        return None
    _, group, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    sums = np.bincount(group, rows["q"][right])
    times = np.full(len(right), np.nan)
    times[right] = rows["q"][right] * counts[group] / sums[group]
    moved = right & (np.abs(np.log(np.maximum(times, 1e-300))) > np.log(2))
    summary = (
        f"{moved.sum():,} of {right.sum():,} right responses ({percent(_share(moved, right))}) "
        "have less than half or more than twice an equal share of the weight q of the right "
        "responses in their group: the policy left the reference unevenly."
    )
    words = np.array([f"{number(float(t))} times an equal share of q" for t in times])
    return ("How q moved", summary, _ends(rows, times, right), words)


def _ends(
    rows: dict[str, NDArray], values: NDArray[np.float64], among: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Rows of the lowest values among some; the same response of a group only once."""
    chosen = np.flatnonzero(among)
    chosen = chosen[np.argsort(values[chosen], kind="stable")][: SHOWN * MOST_COPIES]
    same = np.stack([rows["update"][chosen], rows["group_id"][chosen], rows["s_behavior"][chosen]])
    first = np.unique(same, axis=1, return_index=True)[1]
    return chosen[np.sort(first)[:SHOWN]]


def _share(hits: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(hits.sum() / among.sum()) if among.any() else 0.0


def _texts(run: RunRecord, group_ids: NDArray[np.int64]) -> tuple[dict[int, GroupArrays], str]:
    """The groups from the pool that the run was trained on, or the reason why there are none."""
    recorded = run.part("pool")
    path = Path(str(recorded.get("path")))
    try:
        pool = Pool.open(path, check="size")
        if pool.hash != recorded.get("hash"):
            return {}, f"the pool at {path} is another one or has grown since"
        return {group.group_id: group for group in pool.read(group_ids)}, ""
    except OfflineRlvrError as error:
        return {}, error.message


def _shown(
    rows: dict[str, NDArray],
    row: int,
    groups: dict[int, GroupArrays],
    beside: NDArray[np.str_] | None,
) -> Shown:
    value: dict[str, Any] = {name: column[row] for name, column in rows.items()}
    group_id, index = int(value["group_id"]), int(value["index"])
    group = groups.get(group_id)
    numbers = [f"coefficient {number(float(value['coefficient']))}"]
    numbers.append(f"log-prob {value['s'] - value['s_behavior']:+.3g} nats against the sampler's")
    if beside is not None:
        numbers.append(str(beside[row]))
    return Shown(
        f"update {value['update']}, group {group_id}, response {index}",
        bool(value["reward"] >= RIGHT_FROM),
        "; ".join(numbers),
        group.question if group else "",
        shortened(group.texts[index]) if group else "",
    )
