"""Batches and a KV pool as SGLang hands them to an attention backend, with the attributes that ours reads, no more."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

HEADS, KV_HEADS, HEAD_DIM, SLOTS, REQUESTS, COLUMNS = 4, 2, 8, 64, 4, 16


class Pool:
    """One layer's K and V, filled with noise: a row read from a wrong slot shows."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.keys = torch.randn(SLOTS, KV_HEADS, HEAD_DIM, generator=generator)
        self.values = torch.randn(SLOTS, KV_HEADS, HEAD_DIM, generator=generator)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values

    def set_kv_buffer(self, layer: Any, location: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        self.keys[location.loc] = k
        self.values[location.loc] = v


def slot_table(seed: int = 1) -> torch.Tensor:  # [REQUESTS, COLUMNS] int32
    """Every column of every request in a slot of its own, in no order."""
    order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(seed))
    return order.view(REQUESTS, COLUMNS).int()


def mode(**yes: bool) -> SimpleNamespace:
    return SimpleNamespace(
        is_target_verify=lambda: yes.get("verify", False), is_decode_or_idle=lambda: yes.get("decode", False)
    )


def prefill(rows: Sequence[int], prefixes: Sequence[int], widths: Sequence[int]) -> SimpleNamespace:
    return SimpleNamespace(
        forward_mode=mode(),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor([p + w for p, w in zip(prefixes, widths, strict=True)]),
        extend_prefix_lens=torch.tensor(prefixes),
        extend_seq_lens=torch.tensor(widths),
        spec_info=None,
    )


def verify(rows: Sequence[int], lengths: Sequence[int], widths: int | Sequence[int]) -> SimpleNamespace:
    """A uniform window of one width, or a ragged one; SGLang's seq_lens leave the window out, and `draft_token_num`
    stays the full width in a ragged batch."""
    ragged = None if isinstance(widths, int) else SimpleNamespace(verify_lens=torch.tensor(widths))
    number = widths if isinstance(widths, int) else max(widths) + 1
    return SimpleNamespace(
        forward_mode=mode(verify=True),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(lengths),
        spec_info=SimpleNamespace(draft_token_num=number, ragged_verify_layout=ragged),
    )


def decode(rows: Sequence[int], lengths: Sequence[int]) -> SimpleNamespace:
    return SimpleNamespace(
        forward_mode=mode(decode=True), req_pool_indices=torch.tensor(rows), seq_lens=torch.tensor(lengths)
    )
