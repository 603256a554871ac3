"""The query block's op as one Triton launch: what it covers, and how it is bound. The kernel is in `triton_kernel.py`.

Triton is imported only there, and only when this backend is built: a CPU install has none, or a stand-in.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sglang_dspark.ops.context_kv.triton_backend import triton_is_installed
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform


def refusals(platform: Platform, spec: QKNormRopeSpec) -> list[str]:
    """Why this backend does not cover the case."""
    reasons = spec.pool_refusals()
    # Triton itself reads this switch when it is imported; its interpreter runs kernels on CPU tensors.
    if platform.device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        reasons.append("needs a GPU, or TRITON_INTERPRET=1")
    if not triton_is_installed():
        reasons.append("triton is not installed")
    return reasons


def build(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> Callable[..., None]:
    """Bind the op to its tables."""
    from sglang_dspark.ops.qk_norm_rope import triton_kernel

    return triton_kernel.bind(platform, spec, tables)


BACKEND = Backend("triton", refusals, build)
