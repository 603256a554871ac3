"""Every variant of the kernel compiles for the chips we serve on, without one: registers, spills, LDS, scratch."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from sglang_dspark.ops.native import code
from sglang_dspark.ops.native.toolchain import AMD, NVIDIA, NotBuilt, Toolchain
from sglang_dspark.ops.qk_norm_rope.native_arguments import SOURCE

KERNELS = 3 * 2 * 2 * 3  # head dims, rotary styles, cos/sin types, pool types
NOTHING = ("vgpr_spill_count", "sgpr_spill_count", "group_segment_fixed_size", "private_segment_fixed_size")
READER = shutil.which("llvm-readobj-22") or shutil.which("llvm-readobj")


def missing(tools: Toolchain) -> str:
    try:
        tools.compiler()
    except NotBuilt as reason:
        return str(reason)
    return ""


@pytest.mark.skipif(bool(missing(AMD)), reason=missing(AMD))
@pytest.mark.skipif(READER is None, reason="no llvm-readobj (install llvm-22)")
@pytest.mark.parametrize("arch", code.PREBUILT_ARCHS[AMD])
def test_amd_code(arch):
    """A register too many halves the wavefronts that hide latency; a spill or LDS is traffic nobody asked for."""
    command = [str(READER), "--notes", str(code.built(SOURCE, AMD, arch))]
    notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {name: [int(value) for value in re.findall(rf"\.{name}: +(\d+)", notes)]
             for name in (*NOTHING, "vgpr_count", "kernarg_segment_size")}  # fmt: skip
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, KERNELS)
    assert max(found["vgpr_count"]) <= 64
    assert set(found["kernarg_segment_size"]) == {160}
    for name in NOTHING:
        assert set(found[name]) == {0}, name


@pytest.mark.skipif(bool(missing(NVIDIA)), reason=missing(NVIDIA))
def test_nvidia_code(tmp_path):
    source, output = code.SOURCES / f"{SOURCE}.cpp", tmp_path / "kernels.cubin"
    command = [NVIDIA.compiler(), *NVIDIA.arguments("sm_90"), "-Xptxas", "-v", str(source), "-o", str(output)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", run.stderr)]
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr)
    assert len(registers) == len(spills) == KERNELS
    assert max(registers) <= 64
    assert set(spills) == {("0", "0", "0")}
