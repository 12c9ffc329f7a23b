"""The least time an update could take: its floating-point operations at the machine's GEMM rate.

    T = sum_g (P_g + sum_i R_gi)    T_c = sum R    C = causal pairs of the shared layout
    FLOPs = 6 N_body T + 6 V H T_c + 12 L n_q d C

N_body counts the weights of the linear layers but the head. The rate is measured in the same
process, at the same shapes: every product of a layer's forward and backward pass, and the head's.
"""

import time

import torch
from torch import nn
from transformers import PreTrainedModel

from offline_rlvr.batch import PoolBatch


def _linears(model: PreTrainedModel) -> list[nn.Linear]:
    head = model.get_output_embeddings()
    return [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]


def flops(model: PreTrainedModel, batch: PoolBatch) -> float:
    """Forward and backward of one update."""
    p, r = batch.prompt_lengths.double(), batch.response_lengths.double()
    tokens, scored = float(p.sum() + r.sum()), float(r.sum())
    pairs = float((p * (p + 1) / 2).sum() + (r * p[:, None] + r * (r + 1) / 2).sum())
    body = sum(linear.weight.numel() for linear in _linears(model))
    head = model.get_output_embeddings().weight.numel()
    config = model.config
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 6 * body * tokens + 6 * head * scored + 12 * layers * heads * dim * pairs


@torch.no_grad()
def gemm_rate(model: PreTrainedModel, batch: PoolBatch, dtype: torch.dtype) -> float:
    """FLOPs per second of the matrix products of this update."""
    scored = int(batch.response_lengths.sum())
    tokens = int(batch.prompt_lengths.sum()) + scored
    linears, layers = _linears(model), model.config.num_hidden_layers
    total = spent = 0.0
    shapes = [(linear.weight, tokens, layers) for linear in linears[: len(linears) // layers]]
    for weight, rows, times in [*shapes, (model.get_output_embeddings().weight, scored, 1)]:
        weight = weight.detach().to(dtype)
        given = torch.randn(rows, weight.shape[1], dtype=dtype, device=weight.device)
        made = torch.mm(given, weight.t())  # warm-up
        start = _now(weight)
        torch.mm(given, weight.t())
        torch.mm(made, weight)
        torch.mm(made.t(), given)
        spent += times * (_now(weight) - start)
        total += times * 6.0 * rows * weight.numel()
    return total / spent


def _now(like: torch.Tensor) -> float:
    if like.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
