"""Before anything is timed: do both trainers compute the same numbers?"""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

#: Nats per token, and cosine of the gradients of all weights.
MAX_LOGPROB_DIFF, MIN_COSINE = 1e-4, 0.9999


def compare(ours: Path, theirs: Path) -> dict[str, float]:
    """Log-probs and gradient of the first update, from the dumps of two arms.

    Raises:
        SystemExit: They differ by more than the limits; there is nothing to time.
    """
    mine, other = _logprobs(ours), _logprobs(theirs)
    if mine.keys() != other.keys():
        raise SystemExit("the trainers have scored different responses")
    pairs = ((a, b) for ids in mine for a, b in zip(mine[ids], other[ids], strict=True))
    figures = {"logprob_max_diff": max(abs(a - b) for a, b in pairs)}
    figures |= _gradients(ours, theirs)
    if (
        figures["logprob_max_diff"] > MAX_LOGPROB_DIFF
        or figures["gradient_cosine"] < MIN_COSINE
        or abs(figures["gradient_norm_ratio"] - 1) > 1e-3
    ):
        raise SystemExit(f"the trainers compute different numbers: {figures}")
    return figures


def _logprobs(dump: Path) -> dict[tuple[int, ...], list[float]]:
    rows: list[Any] = json.loads(dump.with_suffix(".json").read_text())
    return {tuple(ids): values for ids, values in rows}


def _gradients(ours: Path, theirs: Path) -> dict[str, float]:
    dot = square = other_square = 0.0
    with safe_open(ours, "pt") as mine, safe_open(theirs, "pt") as other:
        if set(mine.keys()) != set(other.keys()):
            raise SystemExit("the trainers have gradients of different weights")
        for name in mine.keys():  # noqa: SIM118 (no dictionary)
            a, b = mine.get_tensor(name).double(), other.get_tensor(name).double()
            dot += float((a * b).sum())
            square += float((a * a).sum())
            other_square += float((b * b).sum())
    return {
        "gradient_cosine": dot / (square * other_square) ** 0.5,
        "gradient_norm_ratio": (square / other_square) ** 0.5,
    }
