"""The Triton kernel of the context KV writer, and its launcher. Imports Triton: reach it through `triton_backend.py`.

One launch for all layers. One program is one warp, and owns a few rows (a row is one head of one token) of one layer:
all heads of its tokens. A bf16 row of 128 is 16 lanes of 16 bytes, so 8 rows keep the 64 lanes of a wavefront busy and
4 the 32 of a warp, and what a row needs once (slot, position, norm) is shared out over the lanes. Compiled for gfx942
by Triton 3.9.0 (H = 1, no commit lengths) that is a listing of 64 instructions a row and 16-byte accesses, against 286
with one row a program.

Equation and rounding points: those of `reference.py`. Close to bit for bit, because nothing is left to the compiler:
1 / sqrt is IEEE (`sqrt_rn`, `div_rn`), products are not contracted into FMAs, and casts round to nearest even. Only the
order of the sum over D is the compiler's.
"""

# A kernel's parameters are typed by Triton at the call, and an annotation there means something else to it.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sglang_dspark.ops.context_kv.rows import check_rows
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.platforms import Platform


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


@triton.jit(do_not_specialize=["tokens", "num_slots", "num_positions", "columns"])
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
    tokens,
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
    TOKENS: tl.constexpr,
    H_BLOCK: tl.constexpr,  # the next powers of two of H, R/2, D - R and D
    HALF_BLOCK: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    POOL_ALIGN_BYTES: tl.constexpr,  # divides every pool pointer, and every row stride in bytes
    POOL_ALIGN_ELEMENTS: tl.constexpr,
    CAST_BY_BITS: tl.constexpr,
):
    """Write TOKENS tokens of one layer: norm and rotate K of all heads, copy V, store what is not skipped."""
    program = tl.program_id(0)
    layer = program % L
    element = kv.dtype.element_ty

    # One row is one head of one token. Rows beyond the last token or head are computed on clamped addresses.
    row = tl.arange(0, TOKENS * H_BLOCK)[:, None]
    head = row % H_BLOCK
    token = (program // L) * TOKENS + row // H_BLOCK
    exists = (token < tokens) & (head < H)
    slot = tl.load(slots + token, mask=exists, other=-1)
    # A skipped token may carry any position: clamp before the table is read, and skip only at the stores.
    position = tl.load(positions + token, mask=exists, other=0)
    position = tl.minimum(tl.maximum(position, 0), num_positions - 1)
    written = exists & (slot >= 0) & (slot < num_slots)
    if HAS_COMMIT_LENS:
        block = token // columns
        written = written & (token - block * columns < tl.load(commit_lens + block, mask=exists, other=0))

    # The hints sit on the parts: an addition that folds away (head * D with one head) would take its hint along.
    pool = pools + layer * 4
    k_pool = tl.multiple_of(tl.load(pool).to(kv.dtype), POOL_ALIGN_BYTES)
    v_pool = tl.multiple_of(tl.load(pool + 1).to(kv.dtype), POOL_ALIGN_BYTES)
    k_stride = tl.multiple_of(tl.load(pool + 2), POOL_ALIGN_ELEMENTS)
    v_stride = tl.multiple_of(tl.load(pool + 3), POOL_ALIGN_ELEMENTS)
    k_out = k_pool + slot * k_stride + head * D
    v_out = v_pool + slot * v_stride + head * D

    half = tl.arange(0, HALF_BLOCK)[None, :]
    dim = tl.arange(0, D_BLOCK)[None, :]
    in_half = half < R // 2
    first_dim = half if IS_NEOX else 2 * half
    second_dim = first_dim + (R // 2 if IS_NEOX else 1)

    # Every load before the first use, so that they are in flight together.
    k_in = kv + token.to(tl.int64) * kv_stride + (layer * 2 * H + head) * D
    multiplier = multipliers + layer * multipliers_stride
    rope = cos_sin + position * cos_sin_stride
    v = tl.load(k_in + H * D + dim, mask=exists & (dim < D))
    first = _widen(tl.load(k_in + first_dim, mask=exists & in_half, other=0.0), CAST_BY_BITS)
    second = _widen(tl.load(k_in + second_dim, mask=exists & in_half, other=0.0), CAST_BY_BITS)
    first_multiplier = tl.load(multiplier + first_dim, mask=in_half, other=0.0)
    second_multiplier = tl.load(multiplier + second_dim, mask=in_half, other=0.0)
    cos = _widen(tl.load(rope + half, mask=in_half, other=0.0), CAST_BY_BITS)
    sin = _widen(tl.load(rope + R // 2 + half, mask=in_half, other=0.0), CAST_BY_BITS)

    square_sum = tl.sum(first * first + second * second, axis=1)
    if R < D:
        tail_dim = R + tl.arange(0, TAIL_BLOCK)[None, :]
        tail = _widen(tl.load(k_in + tail_dim, mask=exists & (tail_dim < D), other=0.0), CAST_BY_BITS)
        tail_multiplier = tl.load(multiplier + tail_dim, mask=tail_dim < D, other=0.0)
        square_sum += tl.sum(tail * tail, axis=1)
    root = tl.math.sqrt_rn(square_sum * (1.0 / D) + eps)
    inverse_rms = tl.math.div_rn(tl.full(root.shape, 1.0, tl.float32), root)[:, None]

    first = _widen(_round_to(first * inverse_rms * first_multiplier, element, CAST_BY_BITS), CAST_BY_BITS)
    second = _widen(_round_to(second * inverse_rms * second_multiplier, element, CAST_BY_BITS), CAST_BY_BITS)
    turned_first = _round_to(first * cos - second * sin, element, CAST_BY_BITS)
    turned_second = _round_to(second * cos + first * sin, element, CAST_BY_BITS)
    tl.store(k_out + first_dim, turned_first, mask=written & in_half)
    tl.store(k_out + second_dim, turned_second, mask=written & in_half)
    if R < D:
        tail = _round_to(tail * inverse_rms * tail_multiplier, element, CAST_BY_BITS)
        tl.store(k_out + tail_dim, tail, mask=written & (tail_dim < D))
    tl.store(v_out + dim, v, mask=written & (dim < D))


# Triton's interpreter truncates float32 to bf16 and loses bf16 subnormals (3.9.0, runtime/interpreter.py,
# `_convert_float`). There the kernel casts in integer arithmetic, which is the law's rounding; compiled code keeps the
# cast, one instruction on sm_90 and gfx950.
INTERPRETED = not isinstance(write_kernel, triton.runtime.jit.JITFunction)
# Contracting products into FMAs would skip a rounding that the law has.
OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}


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
        write_kernel[(triton.cdiv(tokens, self.constants["TOKENS"]) * self.spec.num_layers,)](
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
            tokens,
            tables.num_slots,
            tables.num_positions,
            tokens if commit_lens is None else tokens // commit_lens.shape[0],
            HAS_COMMIT_LENS=commit_lens is not None,
            **self.constants,
            **OPTIONS,
        )


def bind(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> TritonWriter:
    """Bind the kernel to its tables: one pointer table on the device, and the constants of the spec."""
    pairs = tuple(zip(tables.k_pools, tables.v_pools, strict=True))
    rows = [(k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0)) for k, v in pairs]
    pools = torch.tensor(rows, dtype=torch.int64, device=tables.cos_sin.device)
    return TritonWriter(spec, tables, pools, constants(platform, spec, tables.row_alignment_bytes()))


def constants(platform: Platform, spec: ContextKVSpec, pool_align_bytes: int) -> dict[str, Any]:
    """What the kernel is compiled for."""
    tail = spec.head_dim - spec.rotary_dim
    heads = triton.next_power_of_2(spec.num_kv_heads)
    rows = max(platform.warp_size // 8, 4)  # the interpreter's warp is 1
    return {
        "eps": spec.eps,
        "L": spec.num_layers,
        "H": spec.num_kv_heads,
        "D": spec.head_dim,
        "R": spec.rotary_dim,
        "IS_NEOX": spec.is_neox,
        "TOKENS": max(1, rows // heads),
        "H_BLOCK": heads,
        "HALF_BLOCK": triton.next_power_of_2(spec.rotary_dim // 2),
        "TAIL_BLOCK": triton.next_power_of_2(max(tail, 1)),
        "D_BLOCK": triton.next_power_of_2(spec.head_dim),
        "POOL_ALIGN_BYTES": pool_align_bytes,
        "POOL_ALIGN_ELEMENTS": pool_align_bytes // spec.pool_dtype.itemsize,
        "CAST_BY_BITS": INTERPRETED,
    }
