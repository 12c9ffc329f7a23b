"""Sums over a token's future."""

import torch
from jaxtyping import Float
from torch import Tensor


def future_sum(values: Float[Tensor, "*shape T"], horizon: int | None) -> Float[Tensor, "*shape T"]:
    """`out_t = sum_{k=t}^{min(t + horizon - 1, end)} v_k`, float64; `None`: to the end.

    The current token is included (horizon 1 is the identity). Padding must be 0, so that the window
    ends with the response.
    """
    tail = values.double().flip(-1).cumsum(-1).flip(-1)
    if horizon is None or horizon >= values.shape[-1]:
        return tail
    beyond = torch.zeros_like(tail)
    beyond[..., :-horizon] = tail[..., horizon:]
    return tail - beyond
