"""A pool for people at a terminal. Model text is untrusted: it is escaped before it is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_rlvr.errors import ConfigError, DataError, printable
from offline_rlvr.pool import selection
from offline_rlvr.pool.blocks import GroupArrays
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.summary import QUANTILES

_BAR = 40


def format_group(
    group: GroupArrays, *, responses: Sequence[int] | None = None, logprobs: bool = False
) -> str:
    """A group as plain text: the problem, then each response with its verdict and log-probs.

    Args:
        group: From `Pool.read`.
        responses: Which responses, counted from 0; by default all.
        logprobs: Also each token's id and behavior log-prob.
    """
    lines = [
        f"group {group.group_id}   problem {printable(group.problem_id)}",
        f"question: {printable(group.question)}",
        f"answer: {printable(group.answer)}",
        f"prompt: {len(group.prompt_token_ids)} tokens",
    ]
    for i in range(len(group.rewards)) if responses is None else responses:
        values = group.behavior_logprobs[i]
        reward = "not scored" if np.isnan(group.rewards[i]) else f"{group.rewards[i]:g}"
        lines += [
            "",
            f"--- response {i}: {group.statuses[i]}, reward {reward}, {len(values)} tokens, "
            f"sum of behavior log-probs {values.sum(dtype=np.float64):.4f} nats, "
            f"finish: {group.finish_reasons[i]}",
            printable(group.texts[i]),
        ]
        if logprobs:
            pairs = zip(group.response_token_ids[i].tolist(), values.tolist(), strict=True)
            lines += [f"  {t:>5}  id {token:>7}  {p:.6g}" for t, (token, p) in enumerate(pairs)]
    return "\n".join(lines)


@dataclass(frozen=True)
class Matches:
    """Groups to show.

    Attributes:
        groups: Each with the responses to show, counted from 0.
        matches: How many groups there are, those not shown included.
    """

    groups: list[tuple[GroupArrays, list[int]]]
    matches: int


def matching(
    path: Path,
    group: int | None = None,
    *,
    mixed: bool = False,
    right: bool = False,
    wrong: bool = False,
    limit: int = 1,
    verifier_id: str | None = None,
) -> Matches:
    """Read the first groups that match, in ascending order of id.

    Args:
        path: The pool's folder.
        group: Only this group.
        mixed: Only mixed groups.
        right: Only right responses, and groups that have some; with `wrong` all scored ones.
        wrong: Only wrong responses, and groups that have some.
        limit: Most groups to read.
        verifier_id: Whose grades to use; by default `grades_in_use`.

    Raises:
        ConfigError: A limit below 1, or no such verifier.
        DataError: Nothing matches, or the group is not in the pool.
    """
    if limit < 1:
        raise ConfigError(f"a limit of {limit} groups; it must be at least 1")
    pool = Pool.open(path, verifier_id, check="size")
    shown = selection.responses(pool, right=right, wrong=wrong)
    keep = shown.any(1) & (pool.index.mixed | (not mixed))
    if group is not None:
        keep &= np.isin(np.arange(len(pool)), pool.positions([group]))
    rows = np.flatnonzero(keep)
    if not len(rows):
        raise DataError(
            f"{path} has no matching group" + ("" if group is None else f" {group}"),
            hint="ask for less: --mixed, --right and --wrong must all hold",
        )
    found = pool.read(pool.index.group_ids[rows[:limit]])
    pairs = [(g, np.flatnonzero(shown[row]).tolist()) for g, row in zip(found, rows, strict=False)]
    return Matches(pairs, len(rows))


def format_stats(stats: Mapping[str, Any]) -> str:
    """The funnel (see `summary.funnel`) as plain lines."""
    groups, total = stats["sampled_groups"], stats["sampled_responses"]
    lines = [f"{groups} groups of {stats['group_size']} responses ({total} responses)", ""]
    for name in ("mixed", "all_right", "all_wrong", "unscored_groups"):
        lines.append(share(name, stats[name], groups))
    lines.append("")
    for name in ("unscored_responses", "truncated_responses", "duplicate_responses"):
        lines.append(share(name, stats[name], total))
    lines += [f"  dropped: {printable(reason)}: {n}" for reason, n in stats["drops"].items()]
    lines.append("")
    k = stats["group_size"]
    rates = {"mean accuracy": stats["mean_accuracy"], f"mean@{k}": stats["mean_at_k"]}
    rates |= {f"pass@{k}": value for k, value in stats["pass_at"].items()}
    for name, value in rates.items():
        lines.append(f"{name:<22}{'-' if value is None else f'{value:.4f}':>9}")
    lines += ["", "responses by status"]
    lines += [share(f"  {name}", count, total) for name, count in stats["statuses"].items()]
    lines += ["", "fully scored groups by number of correct responses"]
    most = max([1, *stats["correct_per_group"]])
    for correct, count in enumerate(stats["correct_per_group"]):
        lines.append(f"  {correct:>4}{count:>9}  {'#' * round(_BAR * count / most)}".rstrip())
    lines += ["", "tokens" + " " * 16 + "".join(f"{name:>9}" for name in QUANTILES)]
    for name in ("prompt_lengths", "right_lengths", "wrong_lengths"):
        values = stats[name]
        cells = "" if values is None else "".join(f"{values[q]:>9.0f}" for q in QUANTILES)
        lines.append(f"  {name:<20}{cells or '        -'}")
    return "\n".join(lines)


def share(name: str, count: int, total: int) -> str:
    """A line with a count and its share of the total."""
    percent = f"{100 * count / total:.1f} %" if total else "-"
    return f"{name:<22}{count:>9}  {percent:>8}"


def format_identity(identity: Mapping[str, Any]) -> str:
    """What built a pool, one line per fact that people compare."""
    model, sampling = identity.get("model", {}), identity.get("sampling", {})
    facts = {
        "model": " ".join(str(v) for k, v in model.items() if v and k != "fingerprint"),
        "problems": identity.get("problems", {}).get("source"),
        "sampling": ", ".join(f"{key} {value}" for key, value in sampling.items()),
        "prompt": identity.get("prompt"),
        "seed": identity.get("seed"),
    }
    return "\n".join(printable(f"{name:10} {value}") for name, value in facts.items())
