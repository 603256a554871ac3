"""The LLVM tools that make and read AMDGPU code. They need no ROCm and no GPU; scripts/amd_tools.sh installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VERSION = 22
NAMES = ("clang", "ld.lld", "llvm-mc", "llvm-objdump")
CLANG, LINKER, ASSEMBLER, OBJDUMP = TOOLS = [f"{name}-{VERSION}" for name in NAMES]
ABSENT = [tool for tool in TOOLS if shutil.which(tool) is None]
MISSING = f"{', '.join(ABSENT)} not found: run scripts/amd_tools.sh" if ABSENT else ""
# Contraction is off because the law names its rounding points; preloaded arguments save a round trip.
HIP_FLAGS = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-O3", "-ffp-contract=off",
             "--no-gpu-bundle-output", "-mllvm", "-amdgpu-kernarg-preload-count=14")  # fmt: skip


def run(*command: str | os.PathLike[str], given: bytes = b"") -> bytes:
    """Standard output of a command that must succeed."""
    finished = subprocess.run(command, input=given, capture_output=True)
    output = (finished.stdout + finished.stderr).decode(errors="replace")
    assert finished.returncode == 0, f"{' '.join(map(str, command))}\n{output}"
    return finished.stdout


def compile_hip(source: Path, arch: str, *flags: str) -> bytes:
    """Code object of a HIP source."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "kernel.co"
        run(CLANG, f"--offload-arch={arch}", *HIP_FLAGS, *flags, str(source), "-o", str(result))
        return result.read_bytes()


def compile_text(text: str, arch: str, *flags: str) -> bytes:
    """Code object of a HIP text."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "text.hip"
        source.write_text(text)
        return compile_hip(source, arch, *flags)


def listing_of(text: str, arch: str) -> str:
    """An assembly text, assembled and disassembled again."""
    target = ("-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-filetype=obj")
    return run(OBJDUMP, "-d", "-", given=run(ASSEMBLER, *target, given=text.encode())).decode()


def disassemble(image: bytes, function: str = "") -> str:
    """The listing of a code object, which says itself what chip it was made for, or of one function of it."""
    which = [f"--disassemble-symbols={function}"] if function else []
    return run(OBJDUMP, "-d", *which, "-", given=image).decode()
