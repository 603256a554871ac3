"""The context KV writer compiled for AMD Instinct, launched through libamdhip64: one launch for all layers."""

from __future__ import annotations

from sglang_dspark.ops.context_kv import gpu_writer, native_arguments
from sglang_dspark.ops.context_kv.gpu_writer import GpuWriter
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, driver, toolchain
from sglang_dspark.platforms import Platform

# The kernel rounds its root correctly from a hardware guess, for mean squares from 2^-96 up (`hip/numbers.h`).
SMALLEST_EPS = 2.0**-96


def refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    """Why this backend does not cover the case."""
    if platform.name != "amd":
        return ["needs an AMD GPU"]
    reasons = native_arguments.refusals(spec)
    if spec.eps < SMALLEST_EPS:
        reasons.append(f"eps {spec.eps} is not covered, only 2^-96 and more")
    return reasons + code.refusals(gpu_writer.SOURCE, toolchain.AMD, platform.arch)


def build(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> GpuWriter:
    """Bind the writer to its tables."""
    return gpu_writer.build(platform, spec, tables, toolchain.AMD, driver.HIP)


BACKEND = Backend("hip", refusals, build)
