"""The query block's op compiled for AMD Instinct, launched through libamdhip64."""

from __future__ import annotations

from sglang_dspark.ops.context_kv.hip_backend import SMALLEST_EPS
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, driver, toolchain
from sglang_dspark.ops.qk_norm_rope import gpu_kernel, native_arguments
from sglang_dspark.ops.qk_norm_rope.gpu_kernel import GpuQKNormRope
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform


def refusals(platform: Platform, spec: QKNormRopeSpec) -> list[str]:
    """Why this backend does not cover the case."""
    if platform.name != "amd":
        return ["needs an AMD GPU"]
    reasons = native_arguments.refusals(spec)
    if spec.eps < SMALLEST_EPS:
        reasons.append(f"eps {spec.eps} is not covered, only 2^-96 and more")
    return reasons + code.refusals(gpu_kernel.SOURCE, toolchain.AMD, platform.arch)


def build(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> GpuQKNormRope:
    """Bind the op to its tables."""
    return gpu_kernel.build(platform, spec, tables, toolchain.AMD, driver.HIP)


BACKEND = Backend("hip", refusals, build)
