"""The context KV writer: norm, rotate and scatter K, and scatter V, for every layer of the draft in one call.

``choose`` binds a backend to the pool once; ``Choice.run(kv, positions, slots, commit_lens=None)`` is the hot path:

    kv           [T, L, 2, H, D] kv_dtype, K then V, token-major
    positions    [T] int64, rows of the cos/sin table
    slots        [T] int64, rows of the pools; a negative slot writes nothing; written slots are distinct.
                 [L, T] with ``spec.slots_per_layer``, for pools that keep a window of their own
    commit_lens  [B] int32 or int64 with T = B * W: column c of row b is written only if c < commit_lens[b]

``reference.py`` is the law. A new backend is one module here and one name in ``OP`` below; the platforms then say
where they offer it.
"""

from __future__ import annotations

from sglang_dspark.ops import dispatch
from sglang_dspark.ops.context_kv import (
    aiter_backend,
    cuda_backend,
    hip_backend,
    host_backend,
    torch_backend,
    triton_backend,
)
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables, check_tables
from sglang_dspark.platforms import Platform

__all__ = ["OP", "ContextKVSpec", "ContextKVTables", "choose"]

OP = dispatch.Op(
    "context_kv",
    (
        hip_backend.BACKEND,
        cuda_backend.BACKEND,
        triton_backend.BACKEND,
        aiter_backend.BACKEND,
        host_backend.BACKEND,
        torch_backend.BACKEND,
    ),
    check_tables,
)


def choose(
    platform: Platform, spec: ContextKVSpec, tables: ContextKVTables, requested: str = dispatch.AUTO
) -> dispatch.Choice:
    """Pick the writer for this platform and spec and bind it to the tables: once, before any graph is captured."""
    return dispatch.choose(OP, platform, spec, tables, requested)
