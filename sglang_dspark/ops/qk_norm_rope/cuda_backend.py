"""The query block's op compiled for NVIDIA GPUs, launched through libcuda."""

from __future__ import annotations

from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, driver, toolchain
from sglang_dspark.ops.qk_norm_rope import gpu_kernel, native_arguments
from sglang_dspark.ops.qk_norm_rope.gpu_kernel import GpuQKNormRope
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform


def refusals(platform: Platform, spec: QKNormRopeSpec) -> list[str]:
    """Why this backend does not cover the case."""
    if platform.name != "nvidia":
        return ["needs an NVIDIA GPU"]
    return native_arguments.refusals(spec) + code.refusals(gpu_kernel.SOURCE, toolchain.NVIDIA, platform.arch)


def build(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> GpuQKNormRope:
    """Bind the op to its tables."""
    return gpu_kernel.build(platform, spec, tables, toolchain.NVIDIA, driver.CUDA)


BACKEND = Backend("cuda", refusals, build)
