"""The attention of a draft layer on its own block, with norm, rotation and KV insert in one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class FusedQueryPath:
    """Stands in for `DSparkMiniMaxAttention.forward` once a pool is bound.

    The op stores the block's K and V by the same law as the context writer, so a token's K is the same bytes whether
    it was written as block or as context; SGLang's attention then only reads.
    """

    def __init__(self, attention: Any, run: Callable[..., None]) -> None:
        """Take the layer's attention module, whose weights and heads are used, and its bound op."""
        self._attention = attention
        self._run = run

    def __call__(
        self,
        positions: torch.Tensor,  # [T] int64
        hidden_states: torch.Tensor,  # [T, hidden]
        forward_batch: Any,
    ) -> torch.Tensor:  # [T, hidden], this rank's part
        """Attend from every row of the block to the context and to the whole block."""
        attention = self._attention
        qkv, _ = attention.qkv_proj(hidden_states)
        self._run(qkv, positions, forward_batch.out_cache_loc)
        q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
        out = attention.attn(q, k, v, forward_batch, save_kv_cache=False)
        return attention.o_proj(out)[0]
