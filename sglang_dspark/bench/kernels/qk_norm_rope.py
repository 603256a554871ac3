"""The query block's op as the benchmark sees it: one draft layer's Q and K in place, K and V into its pool."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sglang_dspark.bench.kernels import sglang_qk_norm_rope, sglang_unfused
from sglang_dspark.bench.kernels.op import (
    DTYPE_NAMES,
    INDEX_BYTES,
    Baseline,
    Inputs,
    OpBench,
    Shape,
    Work,
    Written,
    copy_buffers,
    zeros,
)
from sglang_dspark.bench.kernels.tables import K_SCALE, V_SCALE, cos_sin, norm_multipliers
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec, QKNormRopeTables, native_arguments, reference
from sglang_dspark.ops.qk_norm_rope.rows import heads_of


def spec(shape: Shape) -> QKNormRopeSpec:
    """What the op is bound to."""
    preset = shape.preset
    return QKNormRopeSpec(
        num_q_heads=preset.query_heads,
        num_kv_heads=preset.kv_heads,
        head_dim=preset.head_dim,
        rotary_dim=preset.rotary_dim,
        is_neox=True,
        eps=1e-6,
        qkv_dtype=torch.bfloat16,
        pool_dtype=shape.pool_dtype,
        k_scale=K_SCALE if shape.is_fp8 else None,
        v_scale=V_SCALE if shape.is_fp8 else None,
    )


def case(shape: Shape) -> dict[str, int | str]:
    """The row's description of the shape."""
    preset = shape.preset
    return {
        "tokens": shape.tokens,
        "query_heads": preset.query_heads,
        "kv_heads": preset.kv_heads,
        "head_dim": preset.head_dim,
        "rotary_dim": preset.rotary_dim,
        "qkv_dtype": DTYPE_NAMES[torch.bfloat16],
        "pool_dtype": shape.pool_name,
    }


def moved_bytes(shape: Shape) -> int:
    """What any way of doing it must read and write.

    Read: Q, K and V, cos and sin, positions, slots, both multipliers. Written: Q and K in place, K and V rows.
    """
    preset = shape.preset
    head_bytes = preset.head_dim * torch.bfloat16.itemsize
    read = (preset.query_heads + 2 * preset.kv_heads) * head_bytes
    read += preset.rotary_dim * torch.float32.itemsize + 2 * INDEX_BYTES
    in_place = (preset.query_heads + preset.kv_heads) * head_bytes
    stored = 2 * preset.kv_heads * preset.head_dim * shape.pool_dtype.itemsize
    return shape.tokens * (read + in_place + stored) + 2 * preset.head_dim * torch.float32.itemsize


def tables(
    shape: Shape, generator: torch.Generator, device: str, num_slots: int, num_positions: int
) -> QKNormRopeTables:
    """One layer's pools, multipliers, cos and sin."""
    preset = shape.preset
    pool = (num_slots, preset.kv_heads, preset.head_dim)
    q_multipliers, k_multipliers = norm_multipliers(2, preset.head_dim, generator, device).unbind(0)
    return QKNormRopeTables(
        q_multipliers.contiguous(),
        k_multipliers.contiguous(),
        cos_sin(num_positions, preset.rotary_dim, generator, device),
        zeros(pool, shape.pool_dtype, device),
        zeros(pool, shape.pool_dtype, device),
    )


def inputs(
    shape: Shape,
    generator: torch.Generator,
    device: str,
    slots: torch.Tensor,  # [T] int64
    num_positions: int,
) -> Inputs:
    """qkv, positions and slots."""
    width = (shape.preset.query_heads + 2 * shape.preset.kv_heads) * shape.preset.head_dim
    qkv = torch.randn(shape.tokens, width, generator=generator, device=device).to(torch.bfloat16)
    positions = torch.randint(num_positions, (shape.tokens,), generator=generator, device=device)
    buffers = copy_buffers(moved_bytes(shape), device)
    return Inputs((qkv, positions, slots), slots, *buffers, pristine=((qkv, qkv.clone()),))


def extra_rows(_: Shape, __: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """The draft asks for nothing more."""
    yield ()


def written(work: Work, given: Inputs) -> list[Written]:
    """Q, K and V of qkv (V stays as it is), and the pools."""
    q, k, v = heads_of(work.spec, given.rows[0])
    k_pool, v_pool = work.tables.pools
    return [
        Written("Q in place", q, True, False),
        Written("K in place", k, True, False),
        Written("V in place", v, False, False),
        Written("K in the pool", k_pool, True, True),
        Written("V in the pool", v_pool, False, True),
    ]


BENCH = OpBench(
    op=qk_norm_rope.OP,
    source=native_arguments.SOURCE,
    baselines=(
        Baseline("sglang", sglang_qk_norm_rope.bind, sglang_unfused.differing_share),
        Baseline(sglang_unfused.NAME, sglang_unfused.bind_qk_norm_rope, sglang_unfused.differing_share),
    ),
    uses=lambda preset: (preset.query_heads, preset.kv_heads, preset.head_dim, preset.rotary_dim),
    spec=spec,
    case=case,
    moved_bytes=moved_bytes,
    tables=tables,
    inputs=inputs,
    extra_rows=extra_rows,
    written=written,
    reference=reference.run,
    kernel_name=native_arguments.kernel_name,
    rows_of=lambda shape: shape.tokens * (shape.preset.query_heads + 2 * shape.preset.kv_heads),
)
