"""What the `hip` and `cuda` backends share: the compiled kernel, bound to its tables and launched through a driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_dspark.ops.dispatch import NotCovered
from sglang_dspark.ops.native import code, driver
from sglang_dspark.ops.native.toolchain import Toolchain
from sglang_dspark.ops.qk_norm_rope import native_arguments
from sglang_dspark.ops.qk_norm_rope.native_arguments import (
    BLOCK_THREADS,
    OFFSET_LIMIT,
    SOURCE,
    VALUES_A_LANE,
    Arguments,
    row_bytes,
)
from sglang_dspark.ops.qk_norm_rope.rows import check_rows
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform

ACCESS_BYTES = 16  # eight bf16, a lane
FP8_ACCESS_BYTES = 8


@dataclass(frozen=True, eq=False)
class GpuQKNormRope:
    """The op bound to its tables; calling it is one launch on the current stream."""

    spec: QKNormRopeSpec
    tables: QKNormRopeTables
    arguments: Arguments
    kernel: Callable[[int, int, int], None]
    stream: Callable[[], int]

    def __call__(
        self,
        qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor | None,  # [T] int64
        q_fp8_out: torch.Tensor | None = None,  # [T, Hq, D] q_fp8_dtype
    ) -> None:
        """Norm and rotate Q and K in place, and store K and V. Nothing waits for the device."""
        check_rows(self.spec, self.tables, qkv, positions, slots, q_fp8_out)
        if qkv.shape[0] == 0:
            return
        _check_alignment("qkv", qkv, ACCESS_BYTES)
        if q_fp8_out is not None:
            _check_alignment("q_fp8_out", q_fp8_out, FP8_ACCESS_BYTES)
        native_arguments.set_rows(self.arguments, self.tables, qkv, positions, slots, q_fp8_out)
        self.kernel(native_arguments.blocks(self.spec, qkv.shape[0]), 1, self.stream())


def bind(
    spec: QKNormRopeSpec,
    tables: QKNormRopeTables,
    image: bytes,
    opened: driver.Driver,
    stream: Callable[[], int],
) -> GpuQKNormRope:
    """Load the kernel and bind it to its tables; raises `NotCovered` for tables that its accesses cannot reach."""
    if reasons := table_refusals(spec, tables):
        raise NotCovered(reasons)
    arguments = native_arguments.bound_arguments(spec, tables)
    kernel = opened.load(image).kernel(native_arguments.kernel_name(spec), BLOCK_THREADS, arguments)
    return GpuQKNormRope(spec, tables, arguments, kernel, stream)


def table_refusals(spec: QKNormRopeSpec, tables: QKNormRopeTables) -> list[str]:
    """Which tables an access of one lane cannot reach: 16 bytes, 8 in an fp8 pool."""
    reasons = []
    pool_bytes = VALUES_A_LANE * spec.pool_dtype.itemsize
    if (found := tables.pool_alignment_bytes(pool_bytes)) < pool_bytes:
        reasons.append(f"pool rows are aligned to {found} bytes, not to {pool_bytes}")
    if (tables.cos_sin.data_ptr() | row_bytes(tables.cos_sin)) % ACCESS_BYTES:
        reasons.append(f"rows of cos_sin are not aligned to {ACCESS_BYTES} bytes")
    for name in ("q_norm_multipliers", "k_norm_multipliers"):
        if getattr(tables, name).data_ptr() % ACCESS_BYTES:
            reasons.append(f"{name} is not aligned to {ACCESS_BYTES} bytes")
    if tables.num_positions * row_bytes(tables.cos_sin) > OFFSET_LIMIT:
        reasons.append("cos_sin is larger than 4 GiB")
    return reasons


def build(
    platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables, tools: Toolchain, api: driver.Api
) -> GpuQKNormRope:
    """Bind the compiled kernel of the platform through its driver."""
    device = tables.cos_sin.device
    image = code.compiled(SOURCE, tools, platform.arch).read_bytes()
    try:
        opened = driver.open_driver(api)
        return bind(spec, tables, image, opened, lambda: torch.cuda.current_stream(device).cuda_stream)
    except driver.DriverError as error:
        raise NotCovered([str(error)]) from error


def _check_alignment(name: str, tokens: torch.Tensor, access_bytes: int) -> None:
    if (tokens.data_ptr() | row_bytes(tokens)) % access_bytes:
        raise ValueError(
            f"qk_norm_rope {name}: expected tokens at multiples of {access_bytes} bytes, found address "
            f"{tokens.data_ptr():#x} and stride {row_bytes(tokens)}: copy it, or pad its tokens"
        )
