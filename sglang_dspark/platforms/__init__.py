"""The dispatch module: which machine this is, picked once.

This package is the only place that reads a vendor, a gfx or an sm number. Everything else asks the `Platform` it was
given. `amd.py`, `nvidia.py` and `cpu.py` each say which op backends they offer, and in which order.
"""

from __future__ import annotations

import os
from functools import cache

import torch

from sglang_dspark.platforms import amd, cpu, nvidia
from sglang_dspark.platforms.platform import Platform, UnsupportedPlatform

__all__ = ["Platform", "UnsupportedPlatform", "current", "describe", "toolkit_version"]


def describe(name: str, arch: str) -> Platform:
    """A platform by name and architecture, whatever machine this is: for tests, and for compiling ahead of time."""
    describers = {"amd": amd.describe, "nvidia": nvidia.describe, "cpu": cpu.describe}
    if name not in describers:
        raise UnsupportedPlatform(f"asked for platform {name!r}; known are {', '.join(describers)}")
    return describers[name](arch)


@cache
def current() -> Platform:
    """The platform of this process, picked on the first call.

    Initialises torch's current GPU: call it in the process that serves, after the device was set.
    """
    # The same test as SGLang 0.5.23's own (python/sglang/srt/platforms/__init__.py): "1" and nothing else.
    asked_for_cpu = os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"
    if asked_for_cpu or not torch.cuda.is_available():
        return describe("cpu", "cpu")
    if torch.version.hip is not None:
        return describe("amd", torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName)
    major, minor = torch.cuda.get_device_capability()
    return describe("nvidia", f"sm_{major}{minor}")


def toolkit_version() -> str:
    """The version of ROCm or CUDA that torch was built with, "none" for a CPU build."""
    return str(torch.version.hip or torch.version.cuda or "none")
