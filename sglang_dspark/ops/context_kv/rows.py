"""The rows of one call: their contract, and which of them are written."""

from __future__ import annotations

import torch

from sglang_dspark.ops.context_kv.spec import ContextKVSpec
from sglang_dspark.ops.tensor_checks import check_tensor


def check_rows(
    spec: ContextKVSpec,
    device: torch.device,
    kv: torch.Tensor,  # [T, L, 2, H, D] kv_dtype
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor,  # [T] int64, or [L, T] with slots per layer
    commit_lens: torch.Tensor | None,  # [B] int32 or int64, T = B * W
) -> None:
    """Raise ValueError on a broken contract. Reads shapes, types and strides only: nothing waits for the device."""
    tokens = kv.shape[0]
    kv_shape = (tokens, spec.num_layers, 2, spec.num_kv_heads, spec.head_dim)
    check_tensor("context_kv kv", kv, kv_shape, spec.kv_dtype, device)
    _check_vector("positions", positions, tokens, device, (torch.int64,))
    _check_vector("slots", slots, tokens, device, (torch.int64,), spec.num_layers if spec.slots_per_layer else None)
    if commit_lens is None:
        return
    _check_vector("commit_lens", commit_lens, None, device, (torch.int32, torch.int64))
    blocks = commit_lens.shape[0]
    if tokens and (blocks == 0 or tokens % blocks):
        raise ValueError(
            f"context_kv commit_lens: expected B entries with T = B * W, found B = {blocks} and T = {tokens}: "
            "pad every row of the block to the same width"
        )


def written_rows(
    slots: torch.Tensor,  # [T] int64
    commit_lens: torch.Tensor | None,  # [B] int32 or int64
) -> torch.Tensor:
    """Which rows are written, [T] bool: a slot, and a column below its row's commit length."""
    written = slots >= 0
    if commit_lens is None or slots.shape[0] == 0:
        return written
    width = slots.shape[0] // commit_lens.shape[0]
    columns = torch.arange(width, device=slots.device)
    return written & (columns < commit_lens[:, None]).flatten()


def _check_vector(
    name: str,
    tensor: torch.Tensor,  # [length], or [layers, length]
    length: int | None,
    device: torch.device,
    dtypes: tuple[torch.dtype, ...],
    layers: int | None = None,
) -> None:
    dtype = tensor.dtype if tensor.dtype in dtypes else dtypes[0]
    check_tensor(f"context_kv {name}", tensor, (length,) if layers is None else (layers, length), dtype, device)
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"context_kv {name}: expected a contiguous vector, found stride {tensor.stride(-1)}: copy it")
