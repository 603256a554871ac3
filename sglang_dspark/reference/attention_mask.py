"""Who sees whom in a training batch of draft blocks: a dense mask for the CPU, a FlexAttention block mask for a GPU.

Keys are [S context tokens | N blocks of gamma rows], queries the N * gamma rows alone. A row sees every context token
strictly before its block's anchor and every row of its own block. A block that is only padding sees no context, but
still its own rows: a row without any key would be a softmax over nothing, NaN, which the next layer spreads.

The dense mask is [B, 1, Q, S + Q] booleans: right to read and test, and at S = 4096 with 512 anchors 28 MB a sequence.
FlexAttention keeps only which 128 x 128 tiles have work and skips the others.

Source of the pattern: DFlash's multi-anchor training mask, as AutoModel 0.7.0 applies it
(nemo_automodel/components/attention/dflash_mask.py); FlexAttention: torch.nn.attention.flex_attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

AttentionMask = torch.Tensor | BlockMask | None

# What FlexAttention's generated kernels need of a head.
SMALLEST_FLEX_HEAD = 16


def dense_mask(
    anchors: torch.Tensor,  # [B, N] int64
    keep: torch.Tensor,  # [B, N] bool, false for a block of padding
    context_length: int,
    block_size: int,
) -> torch.Tensor:  # [B, 1, N * gamma, S + N * gamma] bool
    """The whole mask."""
    batch, blocks = anchors.shape
    before = torch.arange(context_length, device=anchors.device) < anchors.unsqueeze(-1)  # [B, N, S]
    context = (before & keep.unsqueeze(-1)).repeat_interleave(block_size, dim=1)
    row_block = torch.arange(blocks, device=anchors.device).repeat_interleave(block_size)
    own = (row_block[:, None] == row_block[None, :]).expand(batch, -1, -1)
    return torch.cat([context, own], dim=-1).unsqueeze(1)


def flex_mask(anchors: torch.Tensor, keep: torch.Tensor, context_length: int, block_size: int) -> BlockMask:
    """The same mask for FlexAttention."""
    batch, blocks = anchors.shape
    rows = blocks * block_size

    def sees(b: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        # FlexAttention also asks about rows that fill its last tile; they may not read past the anchors.
        block = (row // block_size).clamp(max=blocks - 1)
        context = (key < context_length) & (key < anchors[b, block]) & keep[b, block]
        own = (key >= context_length) & ((key - context_length) // block_size == row // block_size)
        return context | own

    build: Any = _compiled(create_block_mask) if anchors.is_cuda else create_block_mask
    return build(sees, B=batch, H=None, Q_LEN=rows, KV_LEN=context_length + rows, device=anchors.device)


def masked_attention(
    queries: torch.Tensor,  # [B, heads, Q, D]
    keys: torch.Tensor,  # [B, KV heads, S, D]
    values: torch.Tensor,  # [B, KV heads, S, D]
    *,
    mask: AttentionMask,
    scale: float,
) -> torch.Tensor:  # [B, heads, Q, D]
    """Grouped-query attention under either kind of mask; None lets every query see every key."""
    if isinstance(mask, BlockMask):
        attend: Any = _compiled(flex_attention) if queries.is_cuda else flex_attention
        return attend(queries, keys, values, block_mask=mask, scale=scale, enable_gqa=True)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=True)


def flex_suits(x: torch.Tensor, head_dim: int) -> bool:
    """Whether FlexAttention can be compiled for tensors like this one."""
    return x.is_cuda and head_dim >= SMALLEST_FLEX_HEAD


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled once, on first use. Dynamic shapes: every batch has another number of rows, and a recompilation is
    seconds of standstill."""
    return torch.compile(function, dynamic=True)
