"""The kernels compile for the chips we serve on, without one of them: registers, spills, LDS and scratch of each."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sglang_dspark.ops.native import code, toolchain
from sglang_dspark.ops.native.toolchain import AMD, NVIDIA

from ..context_kv.native_support import missing

KERNELS = 3 * 2 * 2 * 3  # head dims, rotary styles, cos/sin types, pool types
needs_amd = pytest.mark.skipif(bool(missing(AMD)), reason=missing(AMD))
needs_nvidia = pytest.mark.skipif(bool(missing(NVIDIA)), reason=missing(NVIDIA))
READERS = ("llvm-readobj-22", "/opt/rocm/llvm/bin/llvm-readobj", "llvm-readobj")


def notes(path: Path) -> str:
    """The metadata of a code object, as text."""
    reader = next((found for name in READERS if (found := shutil.which(name))), None)
    if reader is None:
        pytest.skip(f"no reader of code objects: tried {', '.join(READERS)} (install llvm-22)")
    return subprocess.run([reader, "--notes", str(path)], capture_output=True, text=True, check=True).stdout


@needs_amd
@pytest.mark.parametrize("arch", code.PREBUILT_ARCHS[AMD])
def test_amd_code_is_within_its_budget(arch):
    """A register too many halves the wavefronts that hide latency; a spill or LDS is traffic nobody asked for."""
    text = notes(code.built("context_kv_writer", AMD, arch))
    found = {field: [int(value) for value in re.findall(rf"\.{field}: +(\d+)", text)] for field in FIELDS}
    assert text.count(".symbol: ") == KERNELS
    assert {field: len(values) for field, values in found.items()} == dict.fromkeys(FIELDS, KERNELS)
    assert max(found["vgpr_count"]) <= 64
    for field in ("vgpr_spill_count", "sgpr_spill_count", "group_segment_fixed_size", "private_segment_fixed_size"):
        assert max(found[field]) == 0, field
    assert set(found["kernarg_segment_size"]) == {112}
    assert set(found["wavefront_size"]) == {64}


FIELDS = (
    "vgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "group_segment_fixed_size",
    "private_segment_fixed_size",
    "kernarg_segment_size",
    "wavefront_size",
)


@needs_nvidia
@pytest.mark.parametrize("arch", code.PREBUILT_ARCHS[NVIDIA])
def test_nvidia_code_is_within_its_budget(arch, tmp_path):
    source, output = code.SOURCES / "context_kv_writer.cpp", tmp_path / "writer.cubin"
    command = [NVIDIA.compiler(), *NVIDIA.arguments(arch), "-Xptxas", "-v", str(source), "-o", str(output)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", run.stderr)]
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr)
    assert len(registers) == len(spills) == KERNELS
    assert max(registers) <= 64
    assert set(spills) == {("0", "0", "0")}


@needs_amd
def test_nothing_is_contracted_or_approximate():
    """Flags that change arithmetic would pass for a faster build: fused products, or a hardware 1 / sqrt."""
    dump = next((found for name in ("llvm-objdump-22", "llvm-objdump") if (found := shutil.which(name))), None)
    if dump is None:
        pytest.skip("no llvm-objdump (install llvm-22)")
    name = "context_kv_128_neox_float32_bf16"
    path = code.built("context_kv_writer", AMD, "gfx942")
    command = [dump, "-d", "--no-show-raw-insn", f"--disassemble-symbols={name}", str(path)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "v_rsq" not in listing
    # Six in 1 / sqrt. Packed ones only add a product with 1 or -1, which is exact: the rotation's four.
    assert len(re.findall(r"\bv_(?:fma|fmac)_f32", listing)) == 6
    assert len(re.findall(r"\bv_pk_fma_f32", listing)) == 4
    wide = re.findall(r"global_(?:load|store)_(\w+)", listing)
    assert sorted(wide) == ["dword", *["dwordx4"] * 10]


@pytest.mark.parametrize("tools", [toolchain.HOST, AMD, NVIDIA], ids=lambda tools: tools.name)
def test_readme_has_the_command_lines(tools):
    """What people copy is what the package runs."""
    readme = (code.SOURCES / "README.md").read_text().replace("\\\n", " ")
    for flag in tools.flags:
        assert flag.split("=")[0] in readme, flag
