"""The projection in front of the context KV writer: one hidden row to K and V of every draft layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from sglang.srt.speculative.dflash_utils import can_dflash_slice_qkv_weight


class ContextProjection:
    """Projects context rows for all layers, in one product where the weights allow it.

    Plain weights of all layers are stacked once; the input is shared, so that is exact. Quantised projections keep
    their own kernels, one call a layer.
    """

    def __init__(self, attentions: Sequence[Any]) -> None:
        """Take the layers' attention modules; their weights must be loaded."""
        self._attentions = list(attentions)
        first = self._attentions[0]
        self._row = (len(self._attentions), 2, first.num_kv_heads, first.head_dim)
        self._weight = self._stacked_weight()  # [L * 2 * H * D, hidden] or None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:  # [T, hidden] -> [T, L, 2, H, D]
        """Project the rows."""
        if self._weight is not None:
            return F.linear(hidden, self._weight).view(-1, *self._row)
        halves = [half for attention in self._attentions for half in attention.kv_proj_only(hidden)]
        return torch.stack(halves, dim=1).view(-1, *self._row)

    def describe(self) -> str:
        """One part of a log line."""
        return "projection=stacked" if self._weight is not None else f"projection=layer by layer ({self._reason})"

    def refresh(self) -> None:
        """Take over the projections' new weights, in place: captured graphs keep the stacked one."""
        if self._weight is not None:
            self._weight.copy_(self._stacked_weight())

    def _stacked_weight(self) -> torch.Tensor | None:
        rows = []
        for attention in self._attentions:
            sliceable, self._reason = can_dflash_slice_qkv_weight(attention.qkv_proj)
            if sliceable and attention.qkv_proj.bias is not None:
                sliceable, self._reason = False, "it has a bias"
            if not sliceable:
                return None
            start = attention.q_size
            rows.append(attention.qkv_proj.weight[start : start + 2 * attention.kv_size])
        return torch.cat(rows)
