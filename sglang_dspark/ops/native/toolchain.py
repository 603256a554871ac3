"""The compilers of each target and their command lines.

The flags are part of the kernels' contract (`hip/README.md` says why): no contraction of products into fused
operations, so that the law keeps its roundings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class NotBuilt(RuntimeError):
    """No compiler, or a compiler that failed. The message is one line and says what to do."""


@dataclass(frozen=True)
class Toolchain:
    """How one kind of target is compiled.

    ``variable`` names the environment variable that picks the compiler; ``candidates`` are tried in order without it.
    ``flags`` may hold ``{arch}``. ``install`` is what to do when there is none.
    """

    name: str
    suffix: str
    variable: str
    candidates: tuple[str, ...]
    flags: tuple[str, ...]
    install: str

    def compiler(self, environment: Mapping[str, str] = os.environ) -> str:
        """The path of the compiler."""
        asked = environment.get(self.variable)
        for name in (asked,) if asked else self.candidates:
            if found := shutil.which(name, path=environment.get("PATH")):
                return found
        tried = asked or ", ".join(self.candidates)
        raise NotBuilt(f"no {self.name} compiler: tried {tried} ({self.install}, or set {self.variable})")

    def arguments(self, arch: str) -> tuple[str, ...]:
        """The flags for an architecture."""
        return tuple(flag.format(arch=arch) for flag in self.flags)


HOST = Toolchain(
    name="host C++",
    suffix=".so",
    variable="CXX",
    candidates=("c++", "g++", "clang++", "clang++-22"),
    flags=("-x", "c++", "-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-shared"),
    install="install g++",
)
AMD = Toolchain(
    name="AMD GPU",
    suffix=".co",
    variable="SGLANG_DSPARK_HIP_COMPILER",
    # ROCm's own clang first; clang 22 of a distribution compiles device code without any of ROCm.
    candidates=("/opt/rocm/llvm/bin/clang++", "clang-22", "hipcc"),
    flags=(
        *("-x", "hip", "--offload-arch={arch}", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-std=c++17", "-O3"),
        *("-ffp-contract=off", "-fno-slp-vectorize", "--no-gpu-bundle-output"),
        *("-mllvm", "-amdgpu-kernarg-preload-count=14"),
    ),
    install="install ROCm, or the packages clang-22 and lld-22",
)
NVIDIA = Toolchain(
    name="CUDA",
    suffix=".cubin",
    variable="SGLANG_DSPARK_NVCC",
    candidates=("nvcc", "/usr/local/cuda/bin/nvcc"),
    flags=("-x", "cu", "-cubin", "-arch={arch}", "-std=c++17", "-O3", "--fmad=false"),
    install="install the CUDA toolkit's nvcc",
)


def version(compiler: str) -> str:
    """What the compiler says of itself: part of the cache key."""
    try:
        answer = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{compiler} cannot be run: {error}") from error
    return answer.stdout


def compile_file(toolchain: Toolchain, compiler: str, arch: str, source: Path, output: Path) -> None:
    """Compile one source for one architecture."""
    command = [compiler, *toolchain.arguments(arch), str(source), "-o", str(output)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{compiler} cannot be run: {error}") from error
    if run.returncode:
        lines = run.stderr.splitlines() or ["it printed nothing"]
        first = next((line for line in lines if "error" in line), lines[0]).strip()
        raise NotBuilt(f"{' '.join(command)} failed with status {run.returncode}: {first}")
