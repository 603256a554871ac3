"""The Triton kernel of the query block's op, and its launcher. Imports Triton: reach it through `triton_backend.py`.

One launch for a layer. One program is one warp and owns a few rows (a row is one head of one token), as in the context
writer's kernel: a bf16 row of 128 is 16 lanes of 16 bytes. The first programs have K rows, with the V row of the same
head; the others have Q rows.

Equation and rounding points: those of `reference.py`, with nothing left to the compiler but the order of the sum over
D: 1 / sqrt and the division by a scale are IEEE (`sqrt_rn`, `div_rn`), products are not contracted into FMAs, and casts
round to nearest even. The fp8 cast is integer arithmetic: any format, on any chip, in the interpreter too.
"""

# A kernel's parameters are typed by Triton at the call, and an annotation there means something else to it.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sglang_dspark.ops.context_kv.triton_kernel import INTERPRETED, OPTIONS, _round_to, _widen
from sglang_dspark.ops.qk_norm_rope.rows import check_rows
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform


@triton.jit
def _to_fp8(values, scale, BIAS: tl.constexpr):
    """The fp8 step of the law, as bytes: e4m3fn has bias 7 and ends at 448, e4m3fnuz bias 8 and 240."""
    LARGEST: tl.constexpr = 448.0 if BIAS == 7 else 240.0
    SMALLEST_NORMAL: tl.constexpr = 2.0 ** (1 - BIAS)
    # Adding a number whose last bit is the format's smallest step makes the hardware round a subnormal there.
    STEP_ALIGNER: tl.constexpr = 2.0 ** (21 - BIAS)
    STEP_ALIGNER_BITS: tl.constexpr = (148 - BIAS) << 23
    quotient = tl.math.div_rn(values, tl.full(values.shape, scale, tl.float32))
    bits = quotient.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = (bits & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    size = tl.where(size < LARGEST, size, LARGEST)
    size_bits = size.to(tl.uint32, bitcast=True)
    subnormal = (size + STEP_ALIGNER).to(tl.uint32, bitcast=True) - STEP_ALIGNER_BITS
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - ((127 - BIAS) << 3)
    code = tl.where(size < SMALLEST_NORMAL, subnormal, normal)
    if BIAS == 8:
        # No negative zero: its byte is the NaN.
        code = tl.where(quotient == quotient, tl.where(code == 0, 0, sign | code), 0x80)
    else:
        code = tl.where(quotient == quotient, sign | code, sign | 0x7F)
    return code.to(tl.uint8)


@triton.jit
def _to_pool(values, scale, BIAS: tl.constexpr, CAST_BY_BITS: tl.constexpr):
    """Values of the qkv dtype as the pool stores them; a BIAS of 0 is a pool of the qkv dtype."""
    if BIAS == 0:
        return values
    else:
        return _to_fp8(_widen(values, CAST_BY_BITS), scale, BIAS)


@triton.jit
def _finish_rows(
    program,
    qkv,
    positions,
    slots,
    multipliers,  # [D] fp32, of Q or of K
    cos_sin,
    k_out,  # the K pool; Q rows: the fp8 query
    v_pool,
    qkv_stride,
    cos_sin_stride,
    k_out_stride,
    v_stride,
    tokens,
    num_slots,
    num_positions,
    k_scale,  # Q rows: the query's
    v_scale,
    eps: tl.constexpr,
    FIRST_HEAD: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    IS_NEOX: tl.constexpr,
    IS_KV: tl.constexpr,
    STORES: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    TAIL_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    CAST_BY_BITS: tl.constexpr,
):
    """Norm and rotate ROWS rows of Q, or of K, in place; store them, and V, where STORES."""
    element = qkv.dtype.element_ty
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    token = row // H
    head = row - token * H
    exists = token < tokens
    position = tl.load(positions + token, mask=exists, other=0)
    position = tl.minimum(tl.maximum(position, 0), num_positions - 1)

    half = tl.arange(0, HALF_BLOCK)[None, :]
    in_half = half < R // 2
    first_dim = half if IS_NEOX else 2 * half
    second_dim = first_dim + (R // 2 if IS_NEOX else 1)
    dim = tl.arange(0, D_BLOCK)[None, :]

    # Every load before the first use, so that they are in flight together.
    x = qkv + token.to(tl.int64) * qkv_stride + (FIRST_HEAD + head) * D
    rope = cos_sin + position * cos_sin_stride
    if IS_KV and STORES:
        slot = tl.load(slots + token, mask=exists, other=-1)
        v = tl.load(x + H * D + dim, mask=exists & (dim < D))
    first = _widen(tl.load(x + first_dim, mask=exists & in_half, other=0.0), CAST_BY_BITS)
    second = _widen(tl.load(x + second_dim, mask=exists & in_half, other=0.0), CAST_BY_BITS)
    first_multiplier = tl.load(multipliers + first_dim, mask=in_half, other=0.0)
    second_multiplier = tl.load(multipliers + second_dim, mask=in_half, other=0.0)
    cos = _widen(tl.load(rope + half, mask=in_half, other=0.0), CAST_BY_BITS)
    sin = _widen(tl.load(rope + R // 2 + half, mask=in_half, other=0.0), CAST_BY_BITS)

    square_sum = tl.sum(first * first + second * second, axis=1)
    if R < D:
        tail_dim = R + tl.arange(0, TAIL_BLOCK)[None, :]
        in_tail = tail_dim < D
        tail = _widen(tl.load(x + tail_dim, mask=exists & in_tail, other=0.0), CAST_BY_BITS)
        tail_multiplier = tl.load(multipliers + tail_dim, mask=in_tail, other=0.0)
        square_sum += tl.sum(tail * tail, axis=1)
    root = tl.math.sqrt_rn(square_sum * (1.0 / D) + eps)
    inverse_rms = tl.math.div_rn(tl.full(root.shape, 1.0, tl.float32), root)[:, None]

    first = _widen(_round_to(first * inverse_rms * first_multiplier, element, CAST_BY_BITS), CAST_BY_BITS)
    second = _widen(_round_to(second * inverse_rms * second_multiplier, element, CAST_BY_BITS), CAST_BY_BITS)
    turned_first = _round_to(first * cos - second * sin, element, CAST_BY_BITS)
    turned_second = _round_to(second * cos + first * sin, element, CAST_BY_BITS)
    tl.store(x + first_dim, turned_first, mask=exists & in_half)
    tl.store(x + second_dim, turned_second, mask=exists & in_half)
    if R < D:
        tail = _round_to(tail * inverse_rms * tail_multiplier, element, CAST_BY_BITS)
        tl.store(x + tail_dim, tail, mask=exists & in_tail)

    if STORES:
        if IS_KV:
            stored = exists & (slot >= 0) & (slot < num_slots)
            out = k_out + slot * k_out_stride + head * D
            v_out = v_pool + slot * v_stride + head * D
            tl.store(v_out + dim, _to_pool(v, v_scale, BIAS, CAST_BY_BITS), mask=stored & (dim < D))
        else:
            stored = exists
            out = k_out + token.to(tl.int64) * k_out_stride + head * D
        stored_first = _to_pool(turned_first, k_scale, BIAS, CAST_BY_BITS)
        stored_second = _to_pool(turned_second, k_scale, BIAS, CAST_BY_BITS)
        tl.store(out + first_dim, stored_first, mask=stored & in_half)
        tl.store(out + second_dim, stored_second, mask=stored & in_half)
        if R < D:
            stored_tail = _to_pool(tail, k_scale, BIAS, CAST_BY_BITS)
            tl.store(out + tail_dim, stored_tail, mask=stored & in_tail)


@triton.jit(do_not_specialize=["tokens", "num_slots", "num_positions", "kv_programs"])
def qk_norm_rope_kernel(
    qkv,  # [T, (HQ + 2 * HKV) * D] bf16 or fp32
    positions,  # [T] int64
    slots,  # [T] int64; any pointer without HAS_SLOTS
    q_multipliers,  # [D] fp32
    k_multipliers,  # [D] fp32
    cos_sin,  # [P, R] fp32 or bf16
    k_pool,  # [slots, HKV, D], 8-bit floats as uint8; any pointer without HAS_SLOTS, like v_pool
    v_pool,
    q_fp8,  # [T, HQ, D] uint8; any pointer without HAS_Q_FP8
    qkv_stride,
    cos_sin_stride,
    k_stride,
    v_stride,
    q_fp8_stride,
    tokens,
    num_slots,
    num_positions,
    kv_programs,
    k_scale,
    v_scale,
    q_scale,
    eps: tl.constexpr,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    IS_NEOX: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    HAS_Q_FP8: tl.constexpr,
    POOL_BIAS: tl.constexpr,
    Q_FP8_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,  # the next powers of two of R/2, D - R and D
    TAIL_BLOCK: tl.constexpr,
    D_BLOCK: tl.constexpr,
    CAST_BY_BITS: tl.constexpr,
):
    """Finish ROWS rows of K and V, or of Q: by program, so no row pays for the other kind."""
    program = tl.program_id(0)
    if program < kv_programs:
        _finish_rows(
            program, qkv, positions, slots, k_multipliers, cos_sin, k_pool, v_pool, qkv_stride, cos_sin_stride,
            k_stride, v_stride, tokens, num_slots, num_positions, k_scale, v_scale, eps, HQ, HKV, D, R, IS_NEOX, True,
            HAS_SLOTS, POOL_BIAS, ROWS, HALF_BLOCK, TAIL_BLOCK, D_BLOCK, CAST_BY_BITS,
        )  # fmt: skip
    else:
        _finish_rows(
            program - kv_programs, qkv, positions, slots, q_multipliers, cos_sin, q_fp8, v_pool, qkv_stride,
            cos_sin_stride, q_fp8_stride, v_stride, tokens, num_slots, num_positions, q_scale, v_scale, eps, 0, HQ, D,
            R, IS_NEOX, False, HAS_Q_FP8, Q_FP8_BIAS, ROWS, HALF_BLOCK, TAIL_BLOCK, D_BLOCK, CAST_BY_BITS,
        )  # fmt: skip


BIASES = {torch.float8_e4m3fn: 7, torch.float8_e4m3fnuz: 8}


@dataclass(frozen=True, eq=False)
class TritonQKNormRope:
    """The op bound to its tables; calling it is one launch."""

    spec: QKNormRopeSpec
    tables: QKNormRopeTables
    pools: tuple[torch.Tensor, torch.Tensor] | None  # as bytes where they are fp8
    constants: dict[str, Any]

    def __call__(
        self,
        qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] qkv_dtype
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor | None,  # [T] int64
        q_fp8_out: torch.Tensor | None = None,  # [T, Hq, D] q_fp8_dtype
    ) -> None:
        """Norm and rotate Q and K in place, and store K and V."""
        spec, tables = self.spec, self.tables
        check_rows(spec, tables, qkv, positions, slots, q_fp8_out)
        tokens, rows = qkv.shape[0], self.constants["ROWS"]
        if tokens == 0:
            return
        kv_programs = triton.cdiv(tokens * spec.num_kv_heads, rows)
        k_pool, v_pool = self.pools or (qkv, qkv)
        q_fp8 = qkv if q_fp8_out is None else q_fp8_out.view(torch.uint8)
        qk_norm_rope_kernel[(kv_programs + triton.cdiv(tokens * spec.num_q_heads, rows),)](
            qkv,
            positions,
            positions if slots is None else slots,
            tables.q_norm_multipliers,
            tables.k_norm_multipliers,
            tables.cos_sin,
            k_pool,
            v_pool,
            q_fp8,
            qkv.stride(0),
            tables.cos_sin.stride(0),
            k_pool.stride(0),
            v_pool.stride(0),
            q_fp8.stride(0),
            tokens,
            tables.num_slots,
            tables.num_positions,
            kv_programs,
            *spec.pool_scales,
            spec.q_scale or 1.0,
            HAS_SLOTS=slots is not None,
            HAS_Q_FP8=q_fp8_out is not None,
            **self.constants,
            **OPTIONS,
        )


def bind(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> TritonQKNormRope:
    """Bind the kernel to its tables."""
    pools = None
    if tables.k_pool is not None and tables.v_pool is not None:
        as_stored = torch.uint8 if spec.pool_is_fp8 else spec.pool_dtype
        pools = tables.k_pool.view(as_stored), tables.v_pool.view(as_stored)
    return TritonQKNormRope(spec, tables, pools, constants(platform, spec))


def constants(platform: Platform, spec: QKNormRopeSpec) -> dict[str, Any]:
    """What the kernel is compiled for, beside what a call has."""
    return {
        "eps": spec.eps,
        "HQ": spec.num_q_heads,
        "HKV": spec.num_kv_heads,
        "D": spec.head_dim,
        "R": spec.rotary_dim,
        "IS_NEOX": spec.is_neox,
        "POOL_BIAS": BIASES.get(spec.pool_dtype, 0),
        "Q_FP8_BIAS": 0 if spec.q_fp8_dtype is None else BIASES[spec.q_fp8_dtype],
        "ROWS": max(platform.warp_size // 8, 4),  # the interpreter's warp is 1
        "HALF_BLOCK": triton.next_power_of_2(spec.rotary_dim // 2),
        "TAIL_BLOCK": triton.next_power_of_2(max(spec.head_dim - spec.rotary_dim, 1)),
        "D_BLOCK": triton.next_power_of_2(spec.head_dim),
        "CAST_BY_BITS": INTERPRETED,
    }
