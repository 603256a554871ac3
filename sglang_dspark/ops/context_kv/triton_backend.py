"""The context KV writer as one Triton launch: what it covers, and how it is bound. The kernel is in `triton_kernel.py`.

Triton is imported only here and there, and only when this backend is asked: a CPU install has none, or a stand-in.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.platforms import Platform


def refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    """Why this backend does not cover the case."""
    reasons = spec.plain_pool_refusals()
    # Triton itself reads this switch when it is imported; its interpreter runs kernels on CPU tensors.
    if platform.device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        reasons.append("needs a GPU, or TRITON_INTERPRET=1")
    if not triton_is_installed():
        reasons.append("triton is not installed")
    return reasons


def triton_is_installed() -> bool:
    """Whether ``import triton`` gives the compiler, and not an error or a stand-in module with its name."""
    try:
        return isinstance(importlib.import_module("triton.runtime.jit").JITFunction, type)
    except (ImportError, AttributeError):
        return False


def build(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> Callable[..., None]:
    """Bind the writer to its tables."""
    from sglang_dspark.ops.context_kv import triton_kernel

    return triton_kernel.bind(platform, spec, tables)


BACKEND = Backend("triton", refusals, build)
