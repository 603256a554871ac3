"""The context KV writer compiled for NVIDIA GPUs, launched through libcuda: one launch for all layers."""

from __future__ import annotations

from sglang_dspark.ops.context_kv import gpu_writer, native_arguments
from sglang_dspark.ops.context_kv.gpu_writer import GpuWriter
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.native import code, driver, toolchain
from sglang_dspark.platforms import Platform


def refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    """Why this backend does not cover the case."""
    if platform.name != "nvidia":
        return ["needs an NVIDIA GPU"]
    return native_arguments.refusals(spec) + code.refusals(gpu_writer.SOURCE, toolchain.NVIDIA, platform.arch)


def build(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> GpuWriter:
    """Bind the writer to its tables."""
    return gpu_writer.build(platform, spec, tables, toolchain.NVIDIA, driver.CUDA)


BACKEND = Backend("cuda", refusals, build)
