"""The funnel: what was sampled, and what became of it."""

from typing import Any

import numpy as np

from offline_rlvr.numerics.pass_at_k import pass_at_k, powers_of_two
from offline_rlvr.pool.index import STATUS_NAMES
from offline_rlvr.pool.reader import Pool

QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def funnel(pool: Pool) -> dict[str, Any]:
    """Counts and rates of a whole pool, as plain JSON values. Reads and checks every row once.

    Returns:
        sampled_groups, sampled_responses, group_size;
        mixed, all_right, all_wrong, unscored_groups: they add up to sampled_groups (a group whose
        rewards
            are all equal is `all_right` when every status is `correct`, else `all_wrong`);
        unscored_responses, truncated_responses;
        duplicate_responses: those that repeat an earlier one of their group token for token;
        drops: problems drawn but not sampled, by reason;
        mean_accuracy: correct share of the scored responses; None without any;
        mean_at_k, pass_at_k: over the fully scored groups: mean share correct, share with any
        correct;
        pass_at: unbiased pass@k for k = 1, 2, 4 ... K, keys as text; the last is `pass_at_k`, the
        first `mean_at_k`; values None without a fully scored group;
        correct_per_group: K + 1 counts of fully scored groups by number of correct responses;
        statuses: responses by status;
        prompt_tokens, response_tokens: totals;
        prompt_lengths, right_lengths, wrong_lengths: quantiles in tokens; None without any.
    """
    index = pool.index
    responses = index.rewards.size
    scored, is_mixed, correct = index.scored, index.mixed, index.correct
    all_right = scored & ~is_mixed & correct.all(1)
    answered = ~np.isnan(index.rewards)
    per_group = np.bincount(correct.sum(1)[scored], minlength=pool.group_size + 1)

    def mean_over_groups(k: int) -> float | None:
        """Mean of pass@k over the fully scored groups; pass@1 is the share correct."""
        chances = pass_at_k(pool.group_size, np.arange(pool.group_size + 1), k)
        return float(np.average(chances, weights=per_group)) if per_group.any() else None

    counts = np.bincount(index.statuses.ravel(), minlength=len(STATUS_NAMES))
    return {
        "group_size": pool.group_size,
        "sampled_groups": len(pool),
        "sampled_responses": responses,
        "mixed": int(is_mixed.sum()),
        "all_right": int(all_right.sum()),
        "all_wrong": int((scored & ~is_mixed & ~all_right).sum()),
        "unscored_groups": int((~scored).sum()),
        "unscored_responses": int((~answered).sum()),
        "truncated_responses": int(index.truncated.sum()),
        "duplicate_responses": sum(block.duplicate_responses() for block in pool.blocks()),
        "drops": pool.drops,
        "mean_accuracy": _mean(correct[answered]),
        "mean_at_k": mean_over_groups(1),
        "pass_at_k": mean_over_groups(pool.group_size),
        "pass_at": {str(k): mean_over_groups(k) for k in powers_of_two(pool.group_size)},
        "correct_per_group": per_group.tolist(),
        "statuses": {n: int(c) for n, c in zip(STATUS_NAMES, counts, strict=True) if c},
        "prompt_tokens": int(index.prompt_lengths.sum(dtype=np.int64)),
        "response_tokens": int(index.response_lengths.sum(dtype=np.int64)),
        "prompt_lengths": _quantiles(index.prompt_lengths),
        "right_lengths": _quantiles(index.response_lengths[correct]),
        "wrong_lengths": _quantiles(index.response_lengths[answered & ~correct]),
    }


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _quantiles(lengths: np.ndarray) -> dict[str, float] | None:
    if not lengths.size:
        return None
    return {name: float(np.quantile(lengths, q)) for name, q in QUANTILES.items()}
