"""Shared-prefix attention behind transformers' `AttentionInterface`, under one name.

Three back-ends compute the same function of a `Layout`:

    dense   one boolean mask over the whole row; slow and plain, the oracle
    split   SDPA over the prompts, then of each response over its prompt and itself; the CPU default
    flex    FlexAttention with a block mask; the CUDA default (no backward on the CPU)

Without a layout (generation, a plain forward) the call goes to transformers' own SDPA unchanged.
Windows of sliding layers count positions, not places in the row, so they are exact. What this file
cannot compute exactly it refuses.
"""

from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.policy.layout import Layout

#: The name under which transformers finds `attend`.
ATTENTION = "shared_prefix"
BACKENDS = ("dense", "split", "flex")
#: FlexAttention's block size; rows are filled up to it so that few shapes are compiled.
FLEX_BLOCK = 128
#: Arguments of an attention layer that change its result and that the back-ends do not know.
UNKNOWN_TERMS = ("softcap", "s_aux", "position_bias")


def choose_backend(device: torch.device, head_dim: int, wanted: str | None = None) -> str:
    """The back-end to use: `wanted` when given, else the fastest that is exact on this device."""
    if wanted is None:
        # The CUDA kernel of FlexAttention needs at least 16 values per head.
        return "flex" if device.type == "cuda" and head_dim >= 16 else "split"
    if wanted not in BACKENDS:
        raise ConfigError(
            f"unknown attention back-end {wanted!r}", hint=f"choose one of {', '.join(BACKENDS)}"
        )
    return wanted


@torch.compiler.disable
def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """One attention layer, called by the model: [1, heads, N, dim] -> [1, N, heads, dim]."""
    if layout is None:
        kwargs |= {"scaling": scaling, "dropout": dropout, "sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    unknown = [name for name in UNKNOWN_TERMS if kwargs.get(name) is not None]
    if unknown or dropout:
        what = ", ".join(unknown) or f"dropout {dropout}"
        raise IncompatibleError(f"{type(module).__name__} attends with {what}: not packed exactly")
    layout.windows[module.layer_idx] = sliding_window  # pyright: ignore
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    compute = {"dense": _dense, "split": _split, "flex": _flex}[layout.backend]
    return compute(query, key, value, layout, scale, sliding_window), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _visible(layout: Layout, query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Whether row index `query` may see row index `key`: what the layout's attention means."""
    groups, members, positions = layout.groups, layout.members, layout.positions
    allowed = (key <= query) & (groups[key] == groups[query])
    allowed = allowed & ((members[key] == 0) | (members[key] == members[query]))
    if window is not None:
        allowed = allowed & (positions[query] - positions[key] < window)
    return allowed


def _dense(query, key, value, layout: Layout, scale: float, window: int | None) -> Tensor:
    mask = layout.masks.get(("dense", window))
    if mask is None:
        rows = torch.arange(len(layout.tokens), device=query.device)
        mask = _visible(layout, rows[:, None], rows[None, :], window)
        layout.masks["dense", window] = mask
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, 1) for x in (key, value))
    return scaled_dot_product_attention(query, key, value, mask, scale=scale).transpose(1, 2)


def _flex(query, key, value, layout: Layout, scale: float, window: int | None) -> Tensor:
    mask = layout.masks.get(("flex", window))
    if mask is None:
        mask = layout.masks["flex", window] = _block_mask(layout, window)
    repeats = query.shape[1] // key.shape[1]
    grouped = repeats & (repeats - 1) == 0  # the kernel wants a power of two
    if not grouped:
        key, value = (x.repeat_interleave(repeats, 1) for x in (key, value))
    kernel = _compiled_flex() if query.is_cuda else flex_attention
    out = kernel(
        query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped and repeats > 1
    )
    return out.transpose(1, 2)


@cache
def _compiled_flex():
    # Uncompiled, FlexAttention holds all scores in memory.
    return torch.compile(flex_attention, dynamic=True)


def _block_mask(layout: Layout, window: int | None) -> BlockMask:
    n, device = len(layout.tokens), layout.tokens.device

    def visible(_batch, _head, query, key):
        return _visible(layout, query, key, window)

    compiled = (
        device.type == "cuda"
    )  # else an [N, N] mask is made first, which only tests can afford
    return create_block_mask(
        visible, B=None, H=None, Q_LEN=n, KV_LEN=n, device=device, _compile=compiled
    )


class _ToSlots(torch.autograd.Function):
    """[N, F] row -> [S, F] padded blocks, zeros in the padding. Backward gathers."""

    @staticmethod
    def forward(ctx, row, slots, size):
        ctx.save_for_backward(slots)
        ctx.rows = len(row)
        return row.new_zeros(size, row.shape[1]).index_copy_(0, slots, row[: len(slots)])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (slots,) = ctx.saved_tensors
        return grad.index_select(0, slots), None, None


class _FromSlots(torch.autograd.Function):
    """[S, F] padded blocks -> [N, F] row.

    Slots are distinct, so backward copies; the index_add of plain indexing is 5x slower on a CPU.
    """

    @staticmethod
    def forward(ctx, blocks, slots):
        ctx.save_for_backward(slots)
        ctx.size = len(blocks)
        return blocks.index_select(0, slots)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (slots,) = ctx.saved_tensors
        return grad.new_zeros(ctx.size, grad.shape[1]).index_copy_(0, slots, grad), None


def _split(query, key, value, layout: Layout, scale: float, window: int | None) -> Tensor:
    """Two SDPA calls. Query heads that share a key head lie along the query axis: no key copies."""
    g, k, p, t = layout.shape
    heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[-1]
    repeats = heads // kv_heads

    def blocks(x: Tensor) -> tuple[Tensor, Tensor]:
        row = x[0].transpose(0, 1).reshape(-1, x.shape[1] * dim)
        slots = _ToSlots.apply(row, layout.slots, g * p + g * k * t)
        prompts, responses = slots.split([g * p, g * k * t])  # pyright: ignore
        return prompts.view(g, p, -1, dim), responses.view(g, k, t, -1, dim)

    (q_prompt, q_own), (k_prompt, k_own), (v_prompt, v_own) = map(blocks, (query, key, value))

    def shared(prompt: Tensor, own: Tensor) -> Tensor:  # [G, K * kv_heads, P + T, dim]
        prompt = prompt[:, None].expand(g, k, p, kv_heads, dim)
        return torch.cat([prompt, own], 2).transpose(2, 3).reshape(g, k * kv_heads, p + t, dim)

    def fold(
        q: Tensor, outer: int
    ) -> Tensor:  # [G, outer, L, heads, dim] -> [G, outer * kv, repeats * L, dim]
        q = q.reshape(g, outer, -1, kv_heads, repeats, dim).permute(0, 1, 3, 4, 2, 5)
        return q.reshape(g, outer * kv_heads, -1, dim)

    def unfold(out: Tensor, outer: int) -> Tensor:  # back to [G * outer * L, heads * dim]
        out = out.view(g, outer, kv_heads, repeats, -1, dim).permute(0, 1, 4, 2, 3, 5)
        return out.reshape(-1, heads * dim)

    prompt_mask, own_mask = _split_masks(layout, window, repeats, query.dtype)
    prompt_out = scaled_dot_product_attention(
        fold(q_prompt, 1),
        k_prompt.transpose(1, 2),
        v_prompt.transpose(1, 2),
        prompt_mask,
        scale=scale,
    )
    own_out = scaled_dot_product_attention(
        fold(q_own, k), shared(k_prompt, k_own), shared(v_prompt, v_own), own_mask, scale=scale
    )
    out = torch.cat([unfold(prompt_out, 1), unfold(own_out, k)])
    row: Tensor = _FromSlots.apply(out, layout.slots)  # pyright: ignore
    return row.view(1, -1, heads, dim)


def _split_masks(layout: Layout, window: int | None, repeats: int, dtype) -> tuple[Tensor, Tensor]:
    """Additive masks [1, 1, repeats * P, P] and [G, 1, repeats * T, P + T].

    Every query, padding too, sees at least itself: no row of the softmax is empty.
    """
    cached = layout.masks.get(("split", window))
    if cached is not None:
        return cached
    _, _, p, t = layout.shape
    device = layout.prompt_lengths.device
    near = window if window is not None else p + t + 1
    prompt, own = torch.arange(p, device=device), torch.arange(t, device=device)
    lengths = layout.prompt_lengths[:, None, None]

    def causal(at: Tensor) -> Tensor:
        distance = at[:, None] - at[None, :]
        return (distance >= 0) & (distance < near)

    to_prompt = (prompt < lengths) & (lengths + own[:, None] - prompt < near)
    to_own = causal(own).expand(len(layout.prompt_lengths), t, t)

    def additive(allowed: Tensor) -> Tensor:
        mask = torch.zeros(allowed.shape, dtype=dtype, device=device)
        return mask.masked_fill_(~allowed, float("-inf")).repeat(1, repeats, 1)[:, None]

    masks = additive(causal(prompt)[None]), additive(torch.cat([to_prompt, to_own], -1))
    layout.masks["split", window] = masks
    return masks
