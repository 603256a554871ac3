"""The context KV writer as the benchmark sees it: all layers' K and V of a call's tokens into the pools."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sglang_dspark.bench.kernels import sglang_context_kv, sglang_unfused
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
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables, native_arguments, reference
from sglang_dspark.ops.context_kv.gpu_writer import SOURCE


def spec(shape: Shape) -> ContextKVSpec:
    """What the writer is bound to."""
    preset = shape.preset
    return ContextKVSpec(
        num_layers=preset.layers,
        num_kv_heads=preset.kv_heads,
        head_dim=preset.head_dim,
        rotary_dim=preset.rotary_dim,
        is_neox=True,
        eps=1e-6,
        kv_dtype=torch.bfloat16,
        pool_dtype=shape.pool_dtype,
        k_scales=(K_SCALE,) * preset.layers if shape.is_fp8 else None,
        v_scales=(V_SCALE,) * preset.layers if shape.is_fp8 else None,
    )


def case(shape: Shape) -> dict[str, int | str]:
    """The row's description of the shape."""
    preset = shape.preset
    return {
        "tokens": shape.tokens,
        "kv_heads": preset.kv_heads,
        "layers": preset.layers,
        "head_dim": preset.head_dim,
        "rotary_dim": preset.rotary_dim,
        "kv_dtype": DTYPE_NAMES[torch.bfloat16],
        "pool_dtype": shape.pool_name,
    }


def moved_bytes(shape: Shape) -> int:
    """What any writer must read and write: kv, cos and sin, positions, slots and multipliers; K and V rows."""
    preset = shape.preset
    values = preset.layers * 2 * preset.kv_heads * preset.head_dim
    read = values * torch.bfloat16.itemsize + preset.rotary_dim * torch.float32.itemsize + 2 * INDEX_BYTES
    multipliers = preset.layers * preset.head_dim * torch.float32.itemsize
    return shape.tokens * (read + values * shape.pool_dtype.itemsize) + multipliers


def tables(
    shape: Shape, generator: torch.Generator, device: str, num_slots: int, num_positions: int
) -> ContextKVTables:
    """Pools of every layer, norm multipliers, cos and sin."""
    preset = shape.preset
    pool = (num_slots, preset.kv_heads, preset.head_dim)
    k_pools, v_pools = (tuple(zeros(pool, shape.pool_dtype, device) for _ in range(preset.layers)) for _ in range(2))
    multipliers = norm_multipliers(preset.layers, preset.head_dim, generator, device)
    return ContextKVTables(k_pools, v_pools, multipliers, cos_sin(num_positions, preset.rotary_dim, generator, device))


def inputs(
    shape: Shape,
    generator: torch.Generator,
    device: str,
    slots: torch.Tensor,  # [T] int64
    num_positions: int,
) -> Inputs:
    """kv, positions and slots."""
    preset = shape.preset
    size = (shape.tokens, preset.layers, 2, preset.kv_heads, preset.head_dim)
    kv = torch.randn(size, generator=generator, device=device).to(torch.bfloat16)
    positions = torch.randint(num_positions, (shape.tokens,), generator=generator, device=device)
    # SGLang scales V in place for an fp8 pool.
    pristine = ((kv, kv.clone()),) if shape.is_fp8 else ()
    return Inputs((kv, positions, slots), slots, *copy_buffers(moved_bytes(shape), device), pristine)


def extra_rows(shape: Shape, device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """Nothing; and commit lengths, as many as divide the tokens: none of a block, some, all."""
    yield ()
    width = next(width for width in (8, 7, 1) if shape.tokens % width == 0)
    blocks = shape.tokens // width
    yield (torch.arange(blocks, device=device, dtype=torch.int32) * 4 % (width + 1),)


def written(work: Work, _: Inputs) -> list[Written]:
    """The pools."""
    k = [Written(f"K of layer {i}", pool, True, True) for i, pool in enumerate(work.tables.k_pools)]
    return k + [Written(f"V of layer {i}", pool, False, True) for i, pool in enumerate(work.tables.v_pools)]


BENCH = OpBench(
    op=context_kv.OP,
    source=SOURCE,
    baselines=(
        # SGLang's products are fused, so more of its roundings fall on the other side.
        *(Baseline(name, sglang_context_kv.binder(name), lambda *_: 1e-2) for name in sglang_context_kv.VARIANTS),
        Baseline(sglang_unfused.NAME, sglang_unfused.bind_context_kv, sglang_unfused.differing_share),
    ),
    uses=lambda preset: (preset.kv_heads, preset.layers, preset.head_dim, preset.rotary_dim),
    spec=spec,
    case=case,
    moved_bytes=moved_bytes,
    tables=tables,
    inputs=inputs,
    extra_rows=extra_rows,
    written=written,
    reference=reference.write,
    kernel_name=native_arguments.kernel_name,
    rows_of=lambda shape: 2 * shape.tokens * shape.preset.layers * shape.preset.kv_heads,
)
