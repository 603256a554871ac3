"""The query block's op as the kernels' own source, compiled for the CPU by the system's C++ compiler on first use."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import torch

from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, toolchain
from sglang_dspark.ops.qk_norm_rope import native_arguments
from sglang_dspark.ops.qk_norm_rope.native_arguments import Arguments
from sglang_dspark.ops.qk_norm_rope.rows import check_rows, outside_error
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform


@cache
def library() -> ctypes.CDLL:
    """The kernels as a shared library; raises `toolchain.NotBuilt` without a compiler."""
    try:
        loaded = ctypes.CDLL(str(code.compiled(native_arguments.SOURCE, toolchain.HOST, "host")))
    except OSError as error:
        raise toolchain.NotBuilt(f"the compiled kernels cannot be loaded: {error}") from error
    loaded.qk_norm_rope_check.restype = ctypes.c_int64
    return loaded


@dataclass(frozen=True, eq=False)
class HostQKNormRope:
    """The op bound to its tables; calling it works on one batch of tokens."""

    spec: QKNormRopeSpec
    tables: QKNormRopeTables
    arguments: Arguments
    check: Any
    run: Any

    def __call__(
        self,
        qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor | None,  # [T] int64
        q_fp8_out: torch.Tensor | None = None,  # [T, Hq, D] q_fp8_dtype
    ) -> None:
        """Norm and rotate Q and K in place, and store K and V."""
        spec, tables = self.spec, self.tables
        check_rows(spec, tables, qkv, positions, slots, q_fp8_out)
        if qkv.shape[0] == 0:
            return
        native_arguments.set_rows(self.arguments, tables, qkv, positions, slots, q_fp8_out)
        row = self.check(ctypes.byref(self.arguments), int(slots is not None))
        if row >= 0:
            self._raise_outside(row, positions, slots)
        groups = native_arguments.blocks(spec, qkv.shape[0]) * native_arguments.groups_a_block(spec)
        self.run(ctypes.byref(self.arguments), groups, 1)

    def _raise_outside(
        self,
        row: int,
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor | None,  # [T] int64
    ) -> NoReturn:
        position = int(positions[row])
        if slots is None or not 0 <= position < self.tables.num_positions:
            raise outside_error("position", row, position, self.tables)
        raise outside_error("slot", row, int(slots[row]), self.tables)


def refusals(platform: Platform, spec: QKNormRopeSpec) -> list[str]:
    """Why this backend does not cover the case."""
    if platform.device_type != "cpu":
        return ["works on CPU tensors only"]
    reasons = native_arguments.refusals(spec)
    try:
        library()
    except toolchain.NotBuilt as reason:
        reasons.append(str(reason))
    return reasons


def build(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> HostQKNormRope:
    """Bind the op to its tables."""
    run = getattr(library(), native_arguments.kernel_name(spec))
    arguments = native_arguments.bound_arguments(spec, tables)
    return HostQKNormRope(spec, tables, arguments, library().qk_norm_rope_check, run)


BACKEND = Backend("host", refusals, build)
