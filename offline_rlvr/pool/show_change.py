"""What a grading changed, for people at a terminal."""

import numpy as np

from offline_rlvr.pool.grade import Change
from offline_rlvr.pool.index import STATUS_NAMES
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.show import printable, share

#: Characters of an example.
_CLIP = 400


def format_change(change: Change) -> str:
    """What another verifier changes, as plain lines."""
    old, new = change.old, change.new
    total, kinds = old.rewards.size, change.kinds
    lines = [f"{len(change.group_ids)} groups: {old.verifier_id} -> {new.verifier_id}", ""]
    lines += [share(name, int(where.sum()), total) for name, where in kinds.items()]
    same = total - sum(int(where.sum()) for where in kinds.values())
    lines += [share("unchanged", same, total), ""]
    gained, lost = int((new.mixed & ~old.mixed).sum()), int((old.mixed & ~new.mixed).sum())
    lines += [
        f"mixed groups{old.mixed.sum():>19} -> {new.mixed.sum()}  (+{gained}, -{lost})",
        "responses by status",
    ]
    for code, name in enumerate(STATUS_NAMES):
        before, after = int((old.statuses == code).sum()), int((new.statuses == code).sum())
        if before or after:
            lines.append(f"  {name:<20}{before:>9} -> {after}")
    return "\n".join(lines)


def format_examples(pool: Pool, change: Change, per_kind: int = 2) -> str:
    """A few changed responses of each kind, from as many groups; empty when nothing changed."""
    lines: list[str] = []
    for name, where in change.kinds.items():
        rows = np.flatnonzero(where.any(1))[:per_kind]
        for row, group in zip(rows, pool.read(change.group_ids[rows]), strict=True):
            i = int(where[row].argmax())
            verdicts = [
                f"{STATUS_NAMES[g.statuses[row, i]]} ({_reward(g.rewards[row, i])})"
                for g in (change.old, change.new)
            ]
            lines += [
                "",
                f"--- {name}: group {group.group_id}, response {i}: {' -> '.join(verdicts)}",
                f"question: {_clip(group.question)}",
                f"answer: {_clip(group.answer)}",
                _clip(group.texts[i]),
            ]
    return "\n".join(lines)


def _reward(value: float) -> str:
    return "not scored" if np.isnan(value) else f"reward {value:g}"


def _clip(text: str) -> str:
    """The end of a text, where its answer is."""
    return printable(text if len(text) <= _CLIP else "... " + text[-_CLIP:])
