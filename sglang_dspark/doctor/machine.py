"""The machine: which platform this is, and whether the native kernels have code for it, or a compiler."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from sglang_dspark import platforms
from sglang_dspark.doctor.findings import Case, Finding, ok, problem
from sglang_dspark.ops.native import code, driver, toolchain
from sglang_dspark.ops.native.toolchain import NotBuilt, Toolchain
from sglang_dspark.platforms import Platform, UnsupportedPlatform

# The toolchain of each platform, and its name for the architecture where that is not the platform's own.
_TOOLCHAINS = {"amd": toolchain.AMD, "nvidia": toolchain.NVIDIA, "cpu": toolchain.HOST}
_HOST_ARCH = "host"
_DRIVERS = {"amd": driver.HIP, "nvidia": driver.CUDA}


def platform_or_none() -> Platform | None:
    """This machine's platform; None when it is not supported, which `check_platform` reports."""
    try:
        return platforms.current()
    except UnsupportedPlatform:
        return None


def check_platform(case: Case) -> Iterator[Finding]:
    """Platform, architecture and fp8 format, and that a CPU was meant where it is one."""
    yield ok("torch", torch.__version__)
    try:
        platform = platforms.current()
    except UnsupportedPlatform as error:
        yield problem("platform", str(error), "use a supported card, or the CPU with SGLANG_USE_CPU_ENGINE=1")
        return
    if platform.name == "cpu" and not case.cpu_engine:
        yield problem(
            "platform",
            "no GPU that torch can use, and SGLANG_USE_CPU_ENGINE is not 1",
            "check the driver and that torch is the image's own build, or export SGLANG_USE_CPU_ENGINE=1",
        )
    else:
        yield ok("platform", f"{platform.name}, architecture {platform.arch}")
    yield ok("fp8", f"{platform.fp8_format}, what an fp8 KV cache holds here")


def check_native_kernels(case: Case) -> Iterator[Finding]:
    """Code for every native kernel; it is compiled now where it is not prebuilt, as a server's first start does."""
    if platform := platform_or_none():
        for source in sorted(path.stem for path in code.SOURCES.glob("*.cpp")):
            case.progress(f"looking for {source}, and compiling it where it is not there yet")
            yield native_kernel(platform, source, _TOOLCHAINS[platform.name])
        if platform.name in _DRIVERS:
            yield native_driver(_DRIVERS[platform.name])


def native_driver(api: driver.Api) -> Finding:
    """Whether the library that loads and launches native kernels can be opened."""
    try:
        driver.open_driver(api)
    except driver.DriverError as error:
        return problem("driver", str(error), "install the driver's libraries, or serve from SGLang's image")
    return ok("driver", f"{api.libraries[0]} can be opened")


def native_kernel(platform: Platform, source: str, tools: Toolchain) -> Finding:
    """Where one kernel's code for a platform comes from."""
    arch = _HOST_ARCH if tools is toolchain.HOST else platform.arch
    try:
        path = code.compiled(source, tools, arch)
    except NotBuilt as reason:
        remedy = "or serve with a slower backend, which auto falls back to"
        return problem(source, str(reason), remedy, asked=f"code for {arch}, prebuilt or compiled here")
    if path.parent == code.PREBUILT:
        return ok(source, f"prebuilt for {arch}: {path.name}")
    return ok(source, f"compiled for {arch} by {tools.compiler()}: {path}")
