"""The query block's op: norm and rotate Q and K in place, and store K and V, one call a draft layer.

``choose`` binds a backend to a layer once; ``Choice.run(qkv, positions, slots, q_fp8_out=None)`` is the hot path:

    qkv        [T, (Hq + 2 * Hkv) * D] qkv_dtype: the heads of Q, of K, of V. Q and K are overwritten
    positions  [T] int64, rows of the cos/sin table: every one inside it, since Q of every row is used
    slots      [T] int64, rows of the pools; a negative slot stores nothing; stored slots are distinct. None: no store
    q_fp8_out  [T, Hq, D] q_fp8_dtype: the finished Q once more, divided by q_scale

``reference.py`` is the law. A new backend is one module here and one name in ``OP`` below; the platforms then say
where they offer it.
"""

from __future__ import annotations

from sglang_dspark.ops import dispatch
from sglang_dspark.ops.qk_norm_rope import (
    aiter_backend,
    cuda_backend,
    hip_backend,
    host_backend,
    torch_backend,
    triton_backend,
)
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables, check_tables
from sglang_dspark.platforms import Platform

__all__ = ["OP", "QKNormRopeSpec", "QKNormRopeTables", "choose"]

OP = dispatch.Op(
    "qk_norm_rope",
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
    platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables, requested: str = dispatch.AUTO
) -> dispatch.Choice:
    """Pick a backend for this platform and spec and bind it to the tables: once, before any graph is captured."""
    return dispatch.choose(OP, platform, spec, tables, requested)
