"""What the tests of compiled kernels share: whether they can be compiled here, and a spec that they cover."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables, host_backend
from sglang_dspark.ops.native import toolchain

BF16 = torch.bfloat16
SPEC = ContextKVSpec(2, 1, 128, 64, True, 1e-6, BF16, BF16)


def missing(tools: toolchain.Toolchain) -> str:
    """Why a target cannot be compiled here, empty when it can."""
    try:
        tools.compiler()
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


def host_missing() -> str:
    try:
        host_backend.library()
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


needs_compiler = pytest.mark.skipif(bool(host_missing()), reason=host_missing())


def tables(row_elements: int = 128, slots: int = 10) -> ContextKVTables:
    def pools() -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(slots, row_elements, dtype=BF16)[:, :128].unflatten(1, (1, 128)) for _ in range(2))

    return ContextKVTables(pools(), pools(), torch.ones(2, 128), torch.ones(6, 64))
