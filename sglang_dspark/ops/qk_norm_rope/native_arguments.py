"""The arguments of the compiled kernels, as `hip/qk_norm_rope_insert.h` lays them out, and how they are filled.

Most are bound once with the tables; a call sets the addresses of its rows and their number.
"""

from __future__ import annotations

import ctypes

import torch

from sglang_dspark.ops.context_kv.native_arguments import (
    BLOCK_THREADS,
    HEAD_DIMS,
    OFFSET_LIMIT,
    SCALE_RANGE,
    VALUES_A_LANE,
    magic,
    row_bytes,
    split_inverse,
)
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables

SOURCE = "qk_norm_rope_insert"


class Arguments(ctypes.Structure):
    """``QKNormRopeArguments``: one field a kernel parameter, in order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("qkv", "positions", "q_multipliers")),
        *((name, ctypes.c_uint32) for name in ("last_kv_row", "kv_heads", "kv_heads_magic")),
        *((name, ctypes.c_uint32) for name in ("last_q_row", "q_heads", "q_heads_magic")),
        *((name, ctypes.c_uint32) for name in ("qkv_token_bytes", "rotary_lanes")),
        *((name, ctypes.c_void_p) for name in ("k_multipliers", "slots", "cos_sin")),
        *((name, ctypes.c_uint64) for name in ("k_pool", "v_pool", "q_fp8", "q_fp8_token_bytes")),
        *((name, ctypes.c_uint32) for name in ("k_row_bytes", "v_row_bytes")),
        *((name, ctypes.c_uint32) for name in ("cos_sin_row_bytes", "last_position", "num_slots")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_float) for name in ("k_inverse_scale", "k_inverse_scale_rest")),
        *((name, ctypes.c_float) for name in ("v_inverse_scale", "v_inverse_scale_rest")),
        *((name, ctypes.c_float) for name in ("q_inverse_scale", "q_inverse_scale_rest")),
    ]


def refusals(spec: QKNormRopeSpec) -> list[str]:
    """What the kernels do not cover, on any machine."""
    reasons = spec.pool_refusals()
    if spec.qkv_dtype != torch.bfloat16:
        reasons.append(f"qkv dtype {spec.qkv_dtype} is not covered, only torch.bfloat16")
    if spec.head_dim not in HEAD_DIMS:
        reasons.append(f"head_dim {spec.head_dim} is not covered, only {', '.join(map(str, HEAD_DIMS))}")
    if spec.rotary_dim % 16:
        reasons.append(f"rotary_dim {spec.rotary_dim} is not covered, only multiples of 16")
    if spec.q_fp8_dtype not in (None, spec.pool_dtype):
        reasons.append(f"an fp8 query ({spec.q_fp8_dtype}) is covered beside a pool of its type only")
    low, high = SCALE_RANGE
    for name in ("k_scale", "v_scale", "q_scale"):
        scale = getattr(spec, name)
        if scale is not None and not low <= scale <= high:
            reasons.append(f"{name} {scale} is not covered, only 2^-64 to 2^64")
    return reasons


def kernel_name(spec: QKNormRopeSpec) -> str:
    """The entry point for a spec."""
    formats = {dtype: name for name, dtype in FP8_DTYPES.items()} | {torch.bfloat16: "bf16", torch.float32: "float32"}
    rotary = "neox" if spec.is_neox else "interleaved"
    return f"qk_norm_rope_{spec.head_dim}_{rotary}_{formats[spec.cos_sin_dtype]}_{formats[spec.pool_dtype]}"


def bound_arguments(spec: QKNormRopeSpec, tables: QKNormRopeTables) -> Arguments:
    """The arguments that stay the same from call to call."""
    arguments = Arguments(
        q_multipliers=tables.q_norm_multipliers.data_ptr(),
        k_multipliers=tables.k_norm_multipliers.data_ptr(),
        kv_heads=spec.num_kv_heads,
        kv_heads_magic=magic(spec.num_kv_heads),
        q_heads=spec.num_q_heads,
        q_heads_magic=magic(spec.num_q_heads),
        rotary_lanes=spec.rotary_dim // VALUES_A_LANE,
        cos_sin=tables.cos_sin.data_ptr(),
        cos_sin_row_bytes=row_bytes(tables.cos_sin),
        last_position=tables.num_positions - 1,
        eps=spec.eps,
    )
    for name, pool in zip(("k", "v"), tables.pools, strict=False):
        setattr(arguments, f"{name}_pool", pool.data_ptr())
        setattr(arguments, f"{name}_row_bytes", row_bytes(pool))
    for name, scale in zip(("k", "v", "q"), (*spec.pool_scales, spec.q_scale or 1.0), strict=True):
        inverse, rest = split_inverse(scale)
        setattr(arguments, f"{name}_inverse_scale", inverse)
        setattr(arguments, f"{name}_inverse_scale_rest", rest)
    return arguments


def set_rows(
    arguments: Arguments,
    tables: QKNormRopeTables,
    qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] bf16, T > 0
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor | None,  # [T] int64
    q_fp8_out: torch.Tensor | None,  # [T, Hq, D] q_fp8_dtype
) -> None:
    """Point the arguments at the rows of a call."""
    tokens, heads = qkv.shape[0], max(arguments.q_heads, arguments.kv_heads)
    token_bytes, q_fp8_bytes = row_bytes(qkv), 0 if q_fp8_out is None else row_bytes(q_fp8_out)
    if tokens * max(token_bytes, q_fp8_bytes) > OFFSET_LIMIT or tokens * heads**2 > 2**32:
        raise ValueError(
            f"qk_norm_rope: expected qkv and q_fp8_out below 4 GiB, and T * H^2 up to 2^32, found T = {tokens} of "
            f"{token_bytes} and {q_fp8_bytes} bytes, and H = {heads}: call it in parts"
        )
    arguments.qkv, arguments.positions = qkv.data_ptr(), positions.data_ptr()
    arguments.qkv_token_bytes, arguments.q_fp8_token_bytes = token_bytes, q_fp8_bytes
    arguments.last_q_row, arguments.last_kv_row = tokens * arguments.q_heads - 1, tokens * arguments.kv_heads - 1
    # Without slots the positions stand in for them, and no slot is inside a pool of none.
    arguments.slots = (positions if slots is None else slots).data_ptr()
    arguments.num_slots = 0 if slots is None else tables.num_slots
    arguments.q_fp8 = 0 if q_fp8_out is None else q_fp8_out.data_ptr()


def groups_a_block(spec: QKNormRopeSpec) -> int:
    """Rows that a block of the grid works on at once."""
    return BLOCK_THREADS * VALUES_A_LANE // spec.head_dim


def blocks(spec: QKNormRopeSpec, tokens: int) -> int:
    """The size of the grid: blocks with K and V rows, then blocks with Q rows."""
    groups = groups_a_block(spec)
    return -(-tokens * spec.num_kv_heads // groups) - (-tokens * spec.num_q_heads // groups)
