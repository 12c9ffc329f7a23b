"""The rolling window behind `weights/ess`: log-sums of the last updates, not their weights."""

from collections import deque
from typing import Any

import torch

from offline_rlvr.numerics.logspace import LogWeights


class EssWindow:
    """Effective sample size over the responses of the last `updates` updates.

    Holds three numbers per update and split. Push every update, logged or not, else "the last 8
    updates" are not.

    Args:
        updates: Length of the window, >= 1.
    """

    def __init__(self, updates: int = 8) -> None:
        self._rows: deque[dict[str, LogWeights]] = deque(maxlen=updates)

    def push(self, weights: dict[str, LogWeights]) -> None:
        """Add one update's log-weights, keyed by split ("", "/right", "/wrong")."""
        self._rows.append({part: w for part, w in weights.items() if w.count > 0})

    def result(self) -> dict[str, float]:
        """`weights/ess` and its splits; a split without a response is absent."""
        pooled: dict[str, LogWeights] = {}
        for row in self._rows:
            for part, w in row.items():
                pooled[part] = pooled[part] + w if part in pooled else w
        return {f"weights/ess{part}": w.ess for part, w in pooled.items()}

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, exact in JSON."""
        rows = [
            {p: [float(w.log_sum), float(w.log_sum_sq), float(w.count)] for p, w in row.items()}
            for row in self._rows
        ]
        return {"updates": self._rows.maxlen, "rows": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, its length included."""
        self._rows = deque(maxlen=state["updates"])
        for row in state["rows"]:
            self._rows.append(
                {
                    part: LogWeights(*(torch.tensor(v, dtype=torch.float64) for v in triple))
                    for part, triple in row.items()
                }
            )
