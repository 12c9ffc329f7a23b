"""Selected log-probs from hidden states, never holding [tokens, vocabulary] above a memory budget.

    z = cap(h W^T + b) / temperature
    log p = z[target] - logsumexp(z)
    entropy = logsumexp(z) - sum softmax(z) z

Logits are made in tiles of tokens; with more than one tile the backward pass makes them again. All
reductions are float32. The gradient is by hand: d log p / d z = onehot(target) - softmax(z).
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Memory for one tile of float32 logits. 256 MiB hold 1,365 tokens of a 49k vocabulary.
LOGITS_BYTES = 256 * 2**20


class Head(NamedTuple):
    """What turns a hidden state into logits.

    Attributes:
        weight: [V, H]; gets a gradient when it requires one.
        bias: [V] or None.
        temperature: The pool's recorded sampling temperature; logits are divided by it.
        softcap: Final-logit soft-capping, `softcap * tanh(z / softcap)`, or None.
    """

    weight: Tensor
    bias: Tensor | None = None
    temperature: float = 1.0
    softcap: float | None = None


def selected_logprobs(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    entropy: bool = False,
    tile_tokens: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of each target and, on request, the entropy of its distribution.

    Args:
        hidden: [C, H] hidden states of the predictor positions.
        head: The output head.
        targets: [C] ids.
        entropy: Also return the entropy, nats, without gradient.
        tile_tokens: Tokens per tile; by default what `LOGITS_BYTES` hold.

    Returns:
        [C] float32 log-probs with gradient, and [C] float32 entropies or None.
    """
    weight = head.weight
    device = weight.device.type
    if torch.is_autocast_enabled(device):
        weight = weight.to(torch.get_autocast_dtype(device))
    tile = tile_tokens or max(1, LOGITS_BYTES // (4 * len(weight)))
    logprobs, entropies = _Selected.apply(  # pyright: ignore
        hidden.to(weight.dtype), weight, head.bias, targets, head, tile, entropy
    )
    return logprobs, entropies if entropy else None


def _tiles(count: int, tile: int) -> list[slice]:
    """Slices of at most `tile` tokens, of nearly equal size."""
    pieces = -(-count // tile)
    ends = [count * i // pieces for i in range(pieces + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head) -> Tensor:
    if hidden.is_cuda and hidden.dtype != torch.float32:
        # What the product sums in float32 stays float32: rounded logits cost 0.01 nats.
        z = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    else:
        z = torch.mm(hidden, weight.t()).float()
    if bias is not None:
        z += bias
    if head.softcap is not None:
        z = z.div_(head.softcap).tanh_().mul_(head.softcap)
    return z if head.temperature == 1.0 else z.div_(head.temperature)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, head, tile, entropy):
        tiles = _tiles(len(hidden), tile)
        selected, norms, entropies, kept = [], [], [], []
        for rows in tiles:
            z = _logits(hidden[rows], weight, bias, head)
            norm = z.logsumexp(-1)
            selected.append(z.gather(1, targets[rows, None])[:, 0] - norm)
            norms.append(norm)
            if entropy:
                entropies.append(norm - ((z - norm[:, None]).exp_() * z).sum(-1))
            if len(tiles) == 1:
                kept.append(z)  # within the budget: no need to make it again
        ctx.head, ctx.tiles = head, tiles
        ctx.save_for_backward(hidden, weight, bias, targets, torch.cat(norms), *kept)
        entropies = torch.cat(entropies) if entropy else hidden.new_empty(0)
        ctx.mark_non_differentiable(entropies)
        return torch.cat(selected), entropies

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _grad_entropy):
        hidden, weight, bias, targets, norms, *kept = ctx.saved_tensors
        head: Head = ctx.head
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        # Sums over tiles are float32 whatever the weight's type.
        grad_weight = None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias else None
        for rows in ctx.tiles:
            z = kept[0] if kept else _logits(hidden[rows], weight, bias, head)
            scale = (grad[rows] / head.temperature)[:, None]
            dz = (z - norms[rows, None]).exp_().mul_(-scale)
            dz.scatter_add_(1, targets[rows, None], scale)
            if head.softcap is not None:  # d tanh(x) = 1 - tanh(x)^2
                dz *= 1 - (z * (head.temperature / head.softcap)) ** 2
            if grad_bias is not None:
                grad_bias += dz.sum(0)
            dz = dz.to(weight.dtype)
            if grad_hidden is not None:
                torch.mm(dz, weight, out=grad_hidden[rows])
            if needs_weight:
                grad_weight = _add_product(grad_weight, dz, hidden[rows])
        grad_weight = grad_weight if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = grad_bias if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _add_product(total: Tensor | None, dz: Tensor, hidden: Tensor) -> Tensor:
    """total + dz^T hidden in float32; `total` is used up."""
    if total is None:
        return torch.mm(dz.t(), hidden).float()
    if dz.dtype == total.dtype:
        return total.addmm_(dz.t(), hidden)
    return total.add_(torch.mm(dz.t(), hidden))
