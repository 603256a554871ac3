"""The arguments of the compiled kernels, as `hip/context_kv_writer.h` lays them out, and how they are filled.

Most are bound once with the tables; a call sets the addresses of its rows and their number.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from sglang_dspark.ops.context_kv.spec import FP8_DTYPES, ContextKVSpec, ContextKVTables

HEAD_DIMS = (64, 128, 256)
VALUES_A_LANE = 8
BLOCK_THREADS = 64
# Between these, a float32 reciprocal and its rest are both normal numbers.
SCALE_RANGE = (2.0**-64, 2.0**64)
SMALLEST_NORMAL = 2.0**-126
OFFSET_LIMIT = 2**32  # the kernels' offsets into kv and into the cos/sin table are 32 bits wide


class Arguments(ctypes.Structure):
    """``ContextKVArguments``: one field a kernel parameter, in order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("slots", "positions", "commit_lens", "kv")),
        *((name, ctypes.c_uint32) for name in ("last_row", "heads", "heads_magic", "columns_magic")),
        *((name, ctypes.c_uint32) for name in ("commit_stride_bytes", "slots_layer_bytes")),
        *((name, ctypes.c_uint32) for name in ("kv_token_bytes", "columns")),
        *((name, ctypes.c_void_p) for name in ("multipliers", "cos_sin", "layers")),
        *((name, ctypes.c_uint32) for name in ("multipliers_row_bytes", "cos_sin_row_bytes")),
        *((name, ctypes.c_uint32) for name in ("rotary_lanes", "last_position", "num_slots")),
        ("eps", ctypes.c_float),
    ]


class Layer(ctypes.Structure):
    """``ContextKVLayer``: the pools of one layer."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("k_pool", "v_pool")),
        *((name, ctypes.c_uint32) for name in ("k_row_bytes", "v_row_bytes")),
        *((name, ctypes.c_float) for name in ("k_inverse_scale", "k_inverse_scale_rest")),
        *((name, ctypes.c_float) for name in ("v_inverse_scale", "v_inverse_scale_rest")),
    ]


def refusals(spec: ContextKVSpec) -> list[str]:
    """What the kernels do not cover, on any machine."""
    reasons = []
    if spec.pool_layout != "nhd":
        reasons.append(f"pool layout {spec.pool_layout} is not covered, only nhd")
    if spec.kv_dtype != torch.bfloat16:
        reasons.append(f"kv dtype {spec.kv_dtype} is not covered, only torch.bfloat16")
    if spec.pool_dtype not in (torch.bfloat16, *FP8_DTYPES.values()):
        reasons.append(f"pool dtype {spec.pool_dtype} is not covered, only bfloat16 and fp8")
    if spec.head_dim not in HEAD_DIMS:
        reasons.append(f"head_dim {spec.head_dim} is not covered, only {', '.join(map(str, HEAD_DIMS))}")
    if spec.rotary_dim % 16:
        reasons.append(f"rotary_dim {spec.rotary_dim} is not covered, only multiples of 16")
    low, high = SCALE_RANGE
    for name in ("k_scales", "v_scales"):
        if outside := [scale for scale in getattr(spec, name) or () if not low <= scale <= high]:
            reasons.append(f"{name} {outside} are not covered, only 2^-64 to 2^64")
    return reasons


def kernel_name(spec: ContextKVSpec) -> str:
    """The entry point for a spec."""
    formats = {dtype: name for name, dtype in FP8_DTYPES.items()} | {torch.bfloat16: "bf16", torch.float32: "float32"}
    rotary = "neox" if spec.is_neox else "interleaved"
    return f"context_kv_{spec.head_dim}_{rotary}_{formats[spec.cos_sin_dtype]}_{formats[spec.pool_dtype]}"


def layer_table(spec: ContextKVSpec, tables: ContextKVTables) -> torch.Tensor:
    """One entry a layer, [L, 40] uint8, on the pools' device."""
    ones = (1.0,) * spec.num_layers
    k_scales, v_scales = spec.k_scales or ones, spec.v_scales or ones
    entries = (Layer * spec.num_layers)()
    for entry, k, v, k_scale, v_scale in zip(entries, tables.k_pools, tables.v_pools, k_scales, v_scales, strict=True):
        entry.k_pool, entry.v_pool = k.data_ptr(), v.data_ptr()
        entry.k_row_bytes, entry.v_row_bytes = row_bytes(k), row_bytes(v)
        entry.k_inverse_scale, entry.k_inverse_scale_rest = split_inverse(k_scale)
        entry.v_inverse_scale, entry.v_inverse_scale_rest = split_inverse(v_scale)
    table = torch.frombuffer(bytearray(entries), dtype=torch.uint8).view(spec.num_layers, ctypes.sizeof(Layer))
    return table.to(tables.cos_sin.device)


def split_inverse(scale: float) -> tuple[float, float]:
    """1 / scale as two float32: the first rounded down, and what is missing, rounded up and never 0.

    x * inverse + x * rest, with one rounding of the sum, then rounds to fp8 as the rounded quotient does, for every
    bf16 x (a test tries them all). The direction matters: a quotient may lie so closely above a tie of float32 that a
    rest rounded down would meet the tie. A positive rest also keeps an infinite x infinite.
    """
    exact = 1.0 / float32(scale)
    inverse = float32(exact)
    if inverse > exact:
        inverse = torch.nextafter(torch.tensor(inverse), torch.tensor(0.0)).item()
    rest = float32(exact - inverse)
    if rest < exact - inverse:
        rest = torch.nextafter(torch.tensor(rest), torch.tensor(1.0)).item()
    return inverse, max(rest, SMALLEST_NORMAL)


def float32(value: float) -> float:
    """The nearest float32."""
    return ctypes.c_float(value).value


def row_bytes(rows: torch.Tensor) -> int:
    """The bytes from one row of a tensor to the next."""
    return rows.stride(0) * rows.element_size()


def magic(divisor: int) -> int:
    """What the kernels multiply by to divide: see ``ContextKVArguments``."""
    return (2**32 - 1) // divisor


def bound_arguments(
    spec: ContextKVSpec,
    tables: ContextKVTables,
    layers: torch.Tensor,  # [L, 40] uint8
) -> Arguments:
    """The arguments that stay the same from call to call."""
    return Arguments(
        heads=spec.num_kv_heads,
        heads_magic=magic(spec.num_kv_heads),
        multipliers=tables.norm_multipliers.data_ptr(),
        cos_sin=tables.cos_sin.data_ptr(),
        layers=layers.data_ptr(),
        multipliers_row_bytes=row_bytes(tables.norm_multipliers),
        cos_sin_row_bytes=row_bytes(tables.cos_sin),
        rotary_lanes=spec.rotary_dim // VALUES_A_LANE,
        last_position=tables.num_positions - 1,
        num_slots=tables.num_slots,
        eps=spec.eps,
    )


def set_rows(
    arguments: Any,
    kv: torch.Tensor,  # [T, L, 2, H, D] bf16, T > 0
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor,  # [T] or [L, T] int64
    commit_lens: torch.Tensor | None,  # [B] int32 or int64, T = B * W
    one: torch.Tensor,  # [1] int32: the commit length of every row when there are none
) -> int:
    """Point the arguments at the rows of a call, and return the number of rows (T * H)."""
    tokens, heads = kv.shape[0], kv.shape[3]
    columns = 1 if commit_lens is None else tokens // commit_lens.shape[0]
    too_many = tokens * kv.stride(0) * 2 > OFFSET_LIMIT or tokens * heads * heads > 2**32 or tokens * columns > 2**32
    if too_many:
        raise ValueError(
            f"context_kv: expected kv below 4 GiB, T * H^2 and T * W up to 2^32, found T = {tokens} of "
            f"{row_bytes(kv)} bytes, H = {heads}, W = {columns}: write it in parts"
        )
    arguments.slots_layer_bytes = row_bytes(slots) if slots.dim() == 2 else 0
    committed = one if commit_lens is None else commit_lens
    arguments.kv, arguments.positions, arguments.slots = kv.data_ptr(), positions.data_ptr(), slots.data_ptr()
    arguments.commit_lens = committed.data_ptr()
    arguments.commit_stride_bytes = 0 if commit_lens is None else committed.element_size()
    arguments.columns, arguments.columns_magic = columns, magic(columns)
    arguments.kv_token_bytes = row_bytes(kv)
    arguments.last_row = tokens * heads - 1
    return tokens * heads
