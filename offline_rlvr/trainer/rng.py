"""Random states of every global generator, in types that `weights_only` loading allows."""

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """States of Python's, NumPy's and torch's global generators (all CUDA devices included)."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.array(keys)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def restore_rng_state(state: dict[str, Any]) -> None:
    """Set what `rng_state` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy(), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([value.cpu() for value in state["cuda"]])
