"""The law of the context KV writer, one row at a time in plain torch: the oracle of every backend.

For each layer of a written token, in float32 unless it says ROUND:

    K: n = ROUND(k * (1 / sqrt(mean(k^2 over D) + eps)) * multiplier)          to the kv dtype
       first R dims: rotate n by the position's cos and sin, then ROUND          to the kv dtype
       fp8 pool only: divide by the layer's k_scale, clamp to the format's finite maximum, convert
    V: copied; fp8 pool: the same fp8 step with v_scale

The rounding points are those of the unfused draft (a norm module that returns bf16, then a rotary module that returns
bf16), so that fusing changes no token. 1 / sqrt is two correctly rounded steps, where a hardware rsqrt may differ by
one unit between chips. With a float32 kv every ROUND is the identity.
"""

from __future__ import annotations

import torch

from sglang_dspark.ops.context_kv.rows import check_rows
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES, ContextKVSpec, ContextKVTables


def write(
    spec: ContextKVSpec,
    tables: ContextKVTables,
    kv: torch.Tensor,  # [T, L, 2, H, D] kv_dtype
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor,  # [T] int64, or [L, T] with slots per layer
    commit_lens: torch.Tensor | None = None,  # [B] int32 or int64, T = B * W
) -> None:
    """Write K and V of every layer into the pools, in place. Every byte of a slot that is not written stays."""
    check_rows(spec, tables.cos_sin.device, kv, positions, slots, commit_lens)
    width = kv.shape[0] // commit_lens.shape[0] if commit_lens is not None and kv.shape[0] else 0
    for token in range(kv.shape[0]):
        if commit_lens is not None and token % width >= int(commit_lens[token // width]):
            continue
        position = int(positions[token])
        for layer in range(spec.num_layers):
            slot = int(slots[layer, token] if spec.slots_per_layer else slots[token])
            if slot < 0:
                continue
            if slot >= tables.num_slots:
                raise IndexError(f"context_kv: row {token} asks for slot {slot}, the pools have {tables.num_slots}")
            if not 0 <= position < tables.num_positions:
                raise IndexError(f"context_kv: row {token} asks for position {position} of {tables.num_positions}")
            cos, sin = tables.cos_sin[position].float().chunk(2)
            k = normalise(kv[token, layer, 0], tables.norm_multipliers[layer], spec.eps)
            k = rotate(k, cos, sin, spec.is_neox)
            k_scale = spec.k_scales[layer] if spec.k_scales else 1.0
            v_scale = spec.v_scales[layer] if spec.v_scales else 1.0
            tables.k_pools[layer][slot] = to_pool(k, spec.pool_dtype, k_scale)
            tables.v_pools[layer][slot] = to_pool(kv[token, layer, 1], spec.pool_dtype, v_scale)


def normalise(
    k: torch.Tensor,  # [H, D] kv_dtype
    multiplier: torch.Tensor,  # [D] fp32
    eps: float,
) -> torch.Tensor:
    """RMS norm over D in float32, then ROUND: [H, D] kv_dtype."""
    x = k.float()
    mean_square = (x * x).mean(dim=-1, keepdim=True)
    return (x * (1.0 / torch.sqrt(mean_square + eps)) * multiplier).to(k.dtype)


def rotate(
    k: torch.Tensor,  # [H, D] kv_dtype
    cos: torch.Tensor,  # [R/2] fp32
    sin: torch.Tensor,  # [R/2] fp32
    is_neox: bool,
) -> torch.Tensor:
    """Rotate the first R dims in float32, then ROUND: [H, D] kv_dtype."""
    half = cos.shape[0]
    rotary = k[:, : 2 * half].float()
    first, second = (rotary[:, :half], rotary[:, half:]) if is_neox else (rotary[:, 0::2], rotary[:, 1::2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    turned_rotary = torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((turned_rotary.to(k.dtype), k[:, 2 * half :]), dim=-1)


def to_pool(
    values: torch.Tensor,  # [H, D] kv_dtype
    pool_dtype: torch.dtype,
    scale: float,
) -> torch.Tensor:
    """What the pool stores for these values: themselves, or the fp8 step."""
    if pool_dtype not in FP8_DTYPES.values():
        return values.to(pool_dtype)
    largest = torch.finfo(pool_dtype).max
    # torch's cast stores 0 for what rounds to -0 in e4m3fnuz, where the byte 0x80 is NaN; a test holds it to that.
    return (values.float() / scale).clamp(-largest, largest).to(pool_dtype)
