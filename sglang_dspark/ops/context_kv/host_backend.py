"""The context KV writer as the kernels' own source, compiled for the CPU: what a server on a CPU runs.

The same statements as on a GPU, with the lanes of a row in lockstep (`hip/lanes.h`), so the end-to-end tests execute
what ships. Compiled by the system's C++ compiler on first use.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import torch

from sglang_dspark.ops.context_kv import native_arguments
from sglang_dspark.ops.context_kv.native_arguments import Arguments
from sglang_dspark.ops.context_kv.rows import check_rows
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, toolchain
from sglang_dspark.platforms import Platform

SOURCE = "context_kv_writer"


@cache
def library() -> ctypes.CDLL:
    """The kernels as a shared library; raises `toolchain.NotBuilt` without a compiler."""
    try:
        loaded = ctypes.CDLL(str(code.compiled(SOURCE, toolchain.HOST, "host")))
    except OSError as error:
        raise toolchain.NotBuilt(f"the compiled kernels cannot be loaded: {error}") from error
    loaded.context_kv_check.restype = ctypes.c_int64
    return loaded


@dataclass(frozen=True, eq=False)
class HostWriter:
    """A writer bound to its tables; calling it writes one batch of rows."""

    spec: ContextKVSpec
    tables: ContextKVTables
    arguments: Arguments
    keeps: tuple[torch.Tensor, ...]  # what the arguments point to
    check: Any
    write: Any

    def __call__(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64, or [L, T] with slots per layer
        commit_lens: torch.Tensor | None = None,  # [B] int32 or int64, T = B * W
    ) -> None:
        """Write K and V of every layer into the pools, in place."""
        check_rows(self.spec, self.tables.cos_sin.device, kv, positions, slots, commit_lens)
        if kv.shape[0] == 0:
            return
        rows = native_arguments.set_rows(self.arguments, kv, positions, slots, commit_lens, self.keeps[0])
        token = self.check(ctypes.byref(self.arguments), self.spec.num_layers)
        if token >= 0:
            self._raise_outside(token, int(positions[token]), slots)
        self.write(ctypes.byref(self.arguments), rows, self.spec.num_layers)

    def _raise_outside(
        self,
        token: int,
        position: int,
        slots: torch.Tensor,  # [T] int64, or [L, T] with slots per layer
    ) -> NoReturn:
        if 0 <= position < self.tables.num_positions:
            what, value, of_what, limit = "slot", int(slots[..., token].max()), "the pools", self.tables.num_slots
        else:
            what, value, of_what, limit = "position", position, "the cos/sin table", self.tables.num_positions
        raise IndexError(
            f"context_kv: row {token} asks for {what} {value}, outside {of_what} (0 to {limit - 1}): "
            f"pass a {what} inside, or give the row a negative slot"
        )


def refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    """Why this backend does not cover the case."""
    if platform.device_type != "cpu":
        return ["works on CPU tensors only"]
    reasons = native_arguments.refusals(spec)
    try:
        library()
    except toolchain.NotBuilt as reason:
        reasons.append(str(reason))
    return reasons


def build(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> HostWriter:
    """Bind the writer to its tables."""
    layers, one = native_arguments.layer_table(spec, tables), torch.ones(1, dtype=torch.int32)
    arguments = native_arguments.bound_arguments(spec, tables, layers)
    write = getattr(library(), native_arguments.kernel_name(spec))
    return HostWriter(spec, tables, arguments, (one, layers), library().context_kv_check, write)


BACKEND = Backend("host", refusals, build)
