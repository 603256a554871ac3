"""The Triton kernel of the context KV writer, and its launcher. Imports Triton: reach it through `triton_backend.py`.

One launch for all layers. One program, of one warp, owns one (token, layer) and all its heads: a row is 256 bytes, and
more warps would only replicate it (SGLang 0.5.23's writer runs the same row on four).

Equation and rounding points: those of `reference.py`. Close to bit for bit, because nothing is left to the compiler:
1 / sqrt is IEEE (`sqrt_rn`, `div_rn`), products are not contracted into FMAs, and casts round to nearest even. Only the
order of the sum over D is the compiler's.
"""

# A kernel's parameters are typed by Triton at the call, and an annotation there means something else to it.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sglang_dspark.ops.context_kv.rows import check_rows
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables


@triton.jit
def _widen(values, CAST_BY_BITS: tl.constexpr):
    if CAST_BY_BITS and values.dtype == tl.bfloat16:
        return (values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return values.to(tl.float32)


@triton.jit
def _round_to(values, dtype: tl.constexpr, CAST_BY_BITS: tl.constexpr):
    if CAST_BY_BITS and dtype == tl.bfloat16:
        bits = values.to(tl.uint32, bitcast=True)
        nearest_even = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet_nan = (bits >> 16) | 0x40
        return tl.where(values == values, nearest_even, quiet_nan).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return values.to(dtype)


@triton.jit(do_not_specialize=["num_slots", "num_positions", "columns"])
def write_kernel(
    kv,  # [T, L, 2, H, D] bf16 or fp32
    positions,  # [T] int64
    slots,  # [T] int64
    commit_lens,  # [B] int32 or int64; any pointer without HAS_COMMIT_LENS
    pools,  # [L, 4] int64: K pointer, V pointer, K row stride, V row stride (in elements)
    multipliers,  # [L, D] fp32
    cos_sin,  # [P, R] fp32 or bf16
    kv_stride,
    multipliers_stride,
    cos_sin_stride,
    num_slots,
    num_positions,
    columns,
    eps: tl.constexpr,
    L: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HAS_COMMIT_LENS: tl.constexpr,
    H_BLOCK: tl.constexpr,  # the next powers of two of H, R/2, D - R and D
    HALF_BLOCK: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    POOL_ALIGN_BYTES: tl.constexpr,  # divides every pool pointer, and every row stride in bytes
    POOL_ALIGN_ELEMENTS: tl.constexpr,
    CAST_BY_BITS: tl.constexpr,
):
    """Write one (token, layer): norm and rotate K of all heads, copy V, store both unless the token is skipped."""
    program = tl.program_id(0)
    token = (program // L).to(tl.int64)
    layer = program % L
    element = kv.dtype.element_ty

    slot = tl.load(slots + token)
    written = (slot >= 0) & (slot < num_slots)
    if HAS_COMMIT_LENS:
        block = token // columns
        written = written & (token - block * columns < tl.load(commit_lens + block))
    # A skipped token may carry any position: clamp before the table is read, and skip only at the stores.
    position = tl.minimum(tl.maximum(tl.load(positions + token), 0), num_positions - 1)

    pool = pools + layer * 4
    k_stride = tl.multiple_of(tl.load(pool + 2), POOL_ALIGN_ELEMENTS)
    v_stride = tl.multiple_of(tl.load(pool + 3), POOL_ALIGN_ELEMENTS)
    k_out = tl.multiple_of(tl.load(pool), POOL_ALIGN_BYTES).to(kv.dtype) + slot * k_stride
    v_out = tl.multiple_of(tl.load(pool + 1), POOL_ALIGN_BYTES).to(kv.dtype) + slot * v_stride

    head = tl.arange(0, H_BLOCK)[:, None]
    half = tl.arange(0, HALF_BLOCK)[None, :]
    dim = tl.arange(0, D_BLOCK)[None, :]
    heads_written = tl.where(written, H, 0)
    in_half = (head < H) & (half < R // 2)
    in_row = (head < H) & (dim < D)
    first_dim = half if IS_NEOX else 2 * half
    second_dim = first_dim + (R // 2 if IS_NEOX else 1)

    # Every load before the first use, so that they are in flight together.
    k_in = kv + token * kv_stride + layer * (2 * H * D)
    multiplier = multipliers + layer * multipliers_stride
    rope = cos_sin + position * cos_sin_stride
    v = tl.load(k_in + H * D + head * D + dim, mask=in_row)
    first = _widen(tl.load(k_in + head * D + first_dim, mask=in_half, other=0.0), CAST_BY_BITS)
    second = _widen(tl.load(k_in + head * D + second_dim, mask=in_half, other=0.0), CAST_BY_BITS)
    first_multiplier = tl.load(multiplier + first_dim, mask=half < R // 2, other=0.0)
    second_multiplier = tl.load(multiplier + second_dim, mask=half < R // 2, other=0.0)
    cos = _widen(tl.load(rope + half, mask=half < R // 2, other=0.0), CAST_BY_BITS)
    sin = _widen(tl.load(rope + R // 2 + half, mask=half < R // 2, other=0.0), CAST_BY_BITS)

    square_sum = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if R < D:
        tail_dim = R + tl.arange(0, TAIL_BLOCK)[None, :]
        in_tail = (head < H) & (tail_dim < D)
        tail = _widen(tl.load(k_in + head * D + tail_dim, mask=in_tail, other=0.0), CAST_BY_BITS)
        tail_multiplier = tl.load(multiplier + tail_dim, mask=tail_dim < D, other=0.0)
        square_sum += tl.sum(tail * tail, axis=1)
    root = tl.math.sqrt_rn(square_sum * (1.0 / D) + eps)
    inverse_rms = tl.math.div_rn(tl.full(root.shape, 1.0, tl.float32), root)[:, None]

    first = _widen(_round_to(first * inverse_rms * first_multiplier, element, CAST_BY_BITS), CAST_BY_BITS)
    second = _widen(_round_to(second * inverse_rms * second_multiplier, element, CAST_BY_BITS), CAST_BY_BITS)
    turned_first = _round_to(first * cos - second * sin, element, CAST_BY_BITS)
    turned_second = _round_to(second * cos + first * sin, element, CAST_BY_BITS)
    tl.store(k_out + head * D + first_dim, turned_first, mask=(head < heads_written) & (half < R // 2))
    tl.store(k_out + head * D + second_dim, turned_second, mask=(head < heads_written) & (half < R // 2))
    if R < D:
        tail = _round_to(tail * inverse_rms * tail_multiplier, element, CAST_BY_BITS)
        tl.store(k_out + head * D + tail_dim, tail, mask=(head < heads_written) & (tail_dim < D))
    tl.store(v_out + head * D + dim, v, mask=(head < heads_written) & (dim < D))


# Triton's interpreter truncates float32 to bf16 and loses bf16 subnormals (3.9.0, runtime/interpreter.py,
# `_convert_float`). There the kernel casts in integer arithmetic, which is the law's rounding; compiled code keeps the
# cast, one instruction on sm_90 and gfx950.
INTERPRETED = not isinstance(write_kernel, triton.runtime.jit.JITFunction)


@dataclass(frozen=True, eq=False)
class TritonWriter:
    """A writer bound to its tables; calling it is one launch for all layers."""

    spec: ContextKVSpec
    tables: ContextKVTables
    pools: torch.Tensor  # [L, 4] int64, on the pools' device
    constants: dict[str, Any]

    def __call__(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] kv_dtype
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
        commit_lens: torch.Tensor | None = None,  # [B] int32 or int64, T = B * W
    ) -> None:
        """Write K and V of every layer into the pools, in place."""
        tables = self.tables
        check_rows(self.spec, self.pools.device, kv, positions, slots, commit_lens)
        tokens = kv.shape[0]
        if tokens == 0:
            return
        write_kernel[(tokens * self.spec.num_layers,)](
            kv,
            positions,
            slots,
            slots if commit_lens is None else commit_lens,
            self.pools,
            tables.norm_multipliers,
            tables.cos_sin,
            kv.stride(0),
            tables.norm_multipliers.stride(0),
            tables.cos_sin.stride(0),
            tables.num_slots,
            tables.num_positions,
            tokens if commit_lens is None else tokens // commit_lens.shape[0],
            HAS_COMMIT_LENS=commit_lens is not None,
            **self.constants,
            num_warps=1,
            enable_fp_fusion=False,
        )


def bind(spec: ContextKVSpec, tables: ContextKVTables) -> TritonWriter:
    """Bind the kernel to its tables: one pointer table on the device, and the constants of the spec."""
    pairs = tuple(zip(tables.k_pools, tables.v_pools, strict=True))
    rows = [(k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0)) for k, v in pairs]
    pools = torch.tensor(rows, dtype=torch.int64, device=tables.cos_sin.device)
    return TritonWriter(spec, tables, pools, constants(spec, pool_alignment(spec, rows)))


def pool_alignment(spec: ContextKVSpec, rows: list[tuple[int, int, int, int]]) -> int:
    """Bytes that divide every row's address, at most 16: the widest access of one lane."""
    size = spec.pool_dtype.itemsize
    return math.gcd(16, *(n for k, v, k_stride, v_stride in rows for n in (k, v, k_stride * size, v_stride * size)))


def constants(spec: ContextKVSpec, pool_align_bytes: int) -> dict[str, Any]:
    """What the kernel is compiled for."""
    tail = spec.head_dim - spec.rotary_dim
    return {
        "eps": spec.eps,
        "L": spec.num_layers,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "R": spec.rotary_dim,
        "IS_NEOX": spec.is_neox,
        "H_BLOCK": triton.next_power_of_2(spec.num_kv_heads),
        "HALF_BLOCK": triton.next_power_of_2(spec.rotary_dim // 2),
        "TAIL_BLOCK": triton.next_power_of_2(max(tail, 1)),
        "D_BLOCK": triton.next_power_of_2(spec.head_dim),
        "POOL_ALIGN_BYTES": pool_align_bytes,
        "POOL_ALIGN_ELEMENTS": pool_align_bytes // spec.pool_dtype.itemsize,
        "CAST_BY_BITS": INTERPRETED,
    }
