"""What the `hip` and `cuda` backends share: the compiled kernel, bound to its tables and launched through a driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_dspark.ops.context_kv import native_arguments
from sglang_dspark.ops.context_kv.native_arguments import BLOCK_THREADS, VALUES_A_LANE, Arguments
from sglang_dspark.ops.context_kv.rows import check_rows
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import NotCovered
from sglang_dspark.ops.native import code, driver
from sglang_dspark.ops.native.toolchain import Toolchain
from sglang_dspark.platforms import Platform

SOURCE = "context_kv_writer"
ACCESS_BYTES = 16


@dataclass(frozen=True, eq=False)
class GpuWriter:
    """A writer bound to its tables; calling it is one launch for all layers, on the current stream."""

    spec: ContextKVSpec
    tables: ContextKVTables
    arguments: Arguments
    keeps: tuple[torch.Tensor, ...]  # what the arguments point to
    kernel: Callable[[int, int, int], None]
    stream: Callable[[], int]

    def __call__(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64, or [L, T] with slots per layer
        commit_lens: torch.Tensor | None = None,  # [B] int32 or int64, T = B * W
    ) -> None:
        """Write K and V of every layer into the pools, in place. Nothing waits for the device."""
        check_rows(self.spec, self.tables.cos_sin.device, kv, positions, slots, commit_lens)
        if kv.shape[0] == 0:
            return
        if (kv.data_ptr() | native_arguments.row_bytes(kv)) % ACCESS_BYTES:
            raise ValueError(
                f"context_kv kv: expected tokens at multiples of {ACCESS_BYTES} bytes, found address "
                f"{kv.data_ptr():#x} and stride {native_arguments.row_bytes(kv)}: copy it, or pad its tokens"
            )
        rows = native_arguments.set_rows(self.arguments, kv, positions, slots, commit_lens, self.keeps[0])
        rows_a_block = BLOCK_THREADS * VALUES_A_LANE // self.spec.head_dim
        self.kernel(-(-rows // rows_a_block), self.spec.num_layers, self.stream())


def bind(
    spec: ContextKVSpec,
    tables: ContextKVTables,
    image: bytes,
    opened: driver.Driver,
    stream: Callable[[], int],
) -> GpuWriter:
    """Load the kernel and bind it to its tables; raises `NotCovered` for tables that wide accesses cannot reach."""
    if reasons := alignment_refusals(spec, tables):
        raise NotCovered(reasons)
    layers = native_arguments.layer_table(spec, tables)
    one = torch.ones(1, dtype=torch.int32, device=tables.cos_sin.device)
    arguments = native_arguments.bound_arguments(spec, tables, layers)
    kernel = opened.load(image).kernel(native_arguments.kernel_name(spec), BLOCK_THREADS, arguments)
    return GpuWriter(spec, tables, arguments, (one, layers), kernel, stream)


def alignment_refusals(spec: ContextKVSpec, tables: ContextKVTables) -> list[str]:
    """Which tables a 16-byte access cannot reach (8 bytes for an fp8 pool's rows)."""
    reasons = []
    pool_bytes = VALUES_A_LANE * spec.pool_dtype.itemsize
    if (found := tables.row_alignment_bytes(pool_bytes)) < pool_bytes:
        reasons.append(f"pool rows are aligned to {found} bytes, not to {pool_bytes}")
    for name, table in (("cos_sin", tables.cos_sin), ("norm_multipliers", tables.norm_multipliers)):
        if (table.data_ptr() | native_arguments.row_bytes(table)) % ACCESS_BYTES:
            reasons.append(f"rows of {name} are not aligned to {ACCESS_BYTES} bytes")
    return reasons


def current_stream(tables: ContextKVTables) -> Callable[[], int]:
    """What gives the handle of torch's current stream on the tables' device."""
    device = tables.cos_sin.device
    return lambda: torch.cuda.current_stream(device).cuda_stream


def build(
    platform: Platform, spec: ContextKVSpec, tables: ContextKVTables, tools: Toolchain, api: driver.Api
) -> GpuWriter:
    """Bind the compiled kernel of the platform through its driver."""
    image = code.compiled(SOURCE, tools, platform.arch).read_bytes()
    try:
        return bind(spec, tables, image, driver.open_driver(api), current_stream(tables))
    except driver.DriverError as error:
        raise NotCovered([str(error)]) from error
