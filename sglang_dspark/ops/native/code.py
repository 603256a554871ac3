"""The compiled file of a kernel source for a target: the one that came with the package, or one built now.

Prebuilt files carry the digest of their sources and flags in their names, so one that is older than its sources is
never loaded: it is simply not found.
"""

from __future__ import annotations

import platform
from pathlib import Path

from sglang_dspark.ops.native import cache, toolchain
from sglang_dspark.ops.native.toolchain import Toolchain

HERE = Path(__file__).parent
SOURCES = HERE / "hip"  # a link to the repository's hip/; in a wheel, its files
PREBUILT = HERE / "prebuilt"
# What `python -m sglang_dspark.ops.native` builds: chips that the kernels are compiled for in the tests.
PREBUILT_ARCHS = {toolchain.AMD: ("gfx90a", "gfx942", "gfx950"), toolchain.NVIDIA: ("sm_80", "sm_90", "sm_100")}


def source_digest(tools: Toolchain, arch: str) -> str:
    """The digest of every source file, of the flags and of the architecture."""
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".h", ".cpp"))
    parts = [part for path in files for part in (path.name, path.read_bytes())]
    return cache.digest([*parts, *tools.arguments(arch)])


def file_name(source: str, tools: Toolchain, arch: str) -> str:
    """The name of a prebuilt file."""
    return f"{source}-{arch}-{source_digest(tools, arch)}{tools.suffix}"


def compiled(source: str, tools: Toolchain, arch: str) -> Path:
    """The compiled file of ``hip/<source>.cpp``; raises `toolchain.NotBuilt` where there is none."""
    prebuilt = PREBUILT / file_name(source, tools, arch)
    return prebuilt if prebuilt.exists() else built(source, tools, arch)


def refusals(source: str, tools: Toolchain, arch: str) -> list[str]:
    """Why a backend has no compiled kernel for the architecture; empty when it has one."""
    try:
        compiled(source, tools, arch)
    except toolchain.NotBuilt as reason:
        return [str(reason)]
    return []


def built(source: str, tools: Toolchain, arch: str) -> Path:
    """The same, from the compiler on this machine, through the cache."""
    compiler = tools.compiler()
    key = cache.digest([source_digest(tools, arch), compiler, toolchain.version(compiler), platform.machine()])
    return cache.published(
        f"{source}-{arch}-{key}{tools.suffix}",
        lambda output: toolchain.compile_file(tools, compiler, arch, SOURCES / f"{source}.cpp", output),
    )
