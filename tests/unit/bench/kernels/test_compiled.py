"""What is read from compiled code agrees with what its compiler says of it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from sglang_dspark.bench import presets, rows
from sglang_dspark.bench.kernels import code_object, compiled, cubin
from sglang_dspark.bench.kernels.context_kv import BENCH as CONTEXT_KV
from sglang_dspark.bench.kernels.instruction_kinds import kind_of
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH as QK_NORM_ROPE
from sglang_dspark.ops.native import code
from sglang_dspark.ops.native.toolchain import AMD, NVIDIA, NotBuilt

from ..test_rows import RUN

TP4 = presets.PRESETS["m3-tp4"]


def missing(tools) -> str:
    try:
        tools.compiler()
    except NotBuilt as reason:
        return str(reason)
    return ""


needs_amd = pytest.mark.skipif(bool(missing(AMD)), reason=missing(AMD))
needs_nvidia = pytest.mark.skipif(bool(missing(NVIDIA)), reason=missing(NVIDIA))


@needs_amd
def test_amd_facts_are_the_compilers_own(tmp_path):
    """Registers, scratch and the occupancy that LLVM computes itself, of every entry point."""
    source = code.SOURCES / "qk_norm_rope_insert.cpp"
    command = [AMD.compiler(), *AMD.arguments("gfx942"), "-Rpass-analysis=kernel-resource-usage"]
    if "clang" not in command[0]:
        pytest.skip("the remarks are clang's")
    output = tmp_path / "kernels.co"
    remarks = subprocess.run([*command, str(source), "-o", str(output)], capture_output=True, text=True).stderr
    fields = ("Function Name", "TotalSGPRs", "VGPRs", r"ScratchSize \[bytes/lane\]", r"Occupancy \[waves/SIMD\]",
              r"LDS Size \[bytes/block\]")  # fmt: skip
    said = zip(*(re.findall(rf"remark: +{field}: (\S+)", remarks) for field in fields), strict=True)
    image, notes = output.read_bytes(), {}
    checked = 0
    for name, *numbers in said:
        found = compiled.amd_figures(image, name, notes)
        keys = ("scalar_registers_count", "vector_registers_count", "scratch_bytes", "waves_count", "shared_bytes")
        assert [found[key] for key in keys] == [int(number) for number in numbers], name
        checked += 1
    assert checked == len(code_object.CodeObject(image).metadata) >= 12


@pytest.mark.parametrize(
    ("vector", "scalar", "waves"),
    # LLVM's own table for gfx90a and later: 512 registers by 8; 800 scalar ones by 16.
    [
        (1, 1, 8),
        (64, 32, 8),
        (65, 32, 7),
        (72, 32, 7),
        (73, 32, 6),
        (128, 32, 4),
        (129, 32, 3),
        (256, 32, 2),
        (24, 102, 7),
    ],
)
def test_amd_occupancy(vector, scalar, waves):
    assert compiled.amd_waves(vector, scalar) == waves


@pytest.mark.parametrize(
    ("registers", "warps"), [(32, 64), (33, 48), (40, 48), (62, 32), (64, 32), (65, 28), (128, 16), (255, 8)]
)
def test_nvidia_occupancy(registers, warps):
    """As NVIDIA's occupancy calculator has it for compute capability 9.0."""
    assert compiled.nvidia_warps(registers) == warps


@needs_nvidia
@pytest.mark.parametrize("source", ["context_kv_writer", "qk_norm_rope_insert"])
def test_cubin_facts_are_ptxas_own(source, tmp_path):
    output = tmp_path / "kernels.cubin"
    command = [NVIDIA.compiler(), *NVIDIA.arguments("sm_90"), "-Xptxas", "-v", str(code.SOURCES / f"{source}.cpp")]
    text = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True).stderr
    said = re.findall(
        r"Function properties for (\w+)\n +(\d+) bytes stack frame.*\n.*Used (\d+) registers(?:.*?(\d+) bytes smem)?",
        text,
    )
    assert len(said) >= 12
    for name, stack, registers, shared in said:
        found = cubin.kernel(output.read_bytes(), name)
        facts = (found.stack_bytes, found.registers, found.shared_bytes)
        assert facts == (int(stack), int(registers), int(shared or 0)), name
        assert found.code_bytes > 1000


@needs_amd
@pytest.mark.parametrize("bench", [CONTEXT_KV, QK_NORM_ROPE], ids=lambda bench: bench.name)
def test_rows_of_compiled_code(bench):
    notes: dict[str, None] = {}
    found = list(compiled.compiled_rows(bench, TP4, RUN, notes))
    assert {(row.subject, row.case["pool_dtype"]) for row in found} >= {
        (arch, pool) for arch in ("gfx942", "gfx950") for pool in ("bf16", "fp8")
    }
    for row in found:
        assert not row.measured and row.how["basis"] == rows.COMPILED
        assert rows.from_json(rows.to_json(row)) == row
    amd = [row for row in found if row.subject.startswith("gfx")]
    assert {row.case["kernel"].rsplit("_", 1)[1] for row in amd} == {"bf16", "e4m3fnuz", "e4m3fn"}
    assert all(row.figures["spills_count"] == 0 for row in amd)


@needs_amd
@pytest.mark.skipif(not any(map(shutil.which, compiled.DISASSEMBLERS)), reason="no llvm-objdump")
def test_the_listing_is_counted_whole():
    """Every instruction has a kind; the kinds add up; no padding is counted."""
    image = code.compiled(CONTEXT_KV.source, AMD, "gfx942").read_bytes()
    kinds = compiled.instruction_kinds(image, "context_kv_128_neox_float32_bf16")
    assert sum(count for kind, count in kinds.items() if kind != "instructions_count") == kinds["instructions_count"]
    # Ten wide loads and one of the five index words; the K and the V store (tests/unit/ops/native).
    assert kinds["stores_count"] == 2 and kinds["lds_count"] == 0


def test_no_disassembler_is_a_note(monkeypatch):
    if missing(AMD):
        pytest.skip(missing(AMD))
    monkeypatch.setattr(compiled, "DISASSEMBLERS", ("no-such-objdump",))
    image, notes = code.compiled(CONTEXT_KV.source, AMD, "gfx942").read_bytes(), {}
    figures = compiled.amd_figures(image, "context_kv_128_neox_float32_bf16", notes)
    assert "vector_registers_count" in figures and "instructions_count" not in figures
    assert list(notes) == ["instructions are not counted: no disassembler (tried no-such-objdump)"]


def test_no_compiler_is_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "PREBUILT", tmp_path)
    for variable in ("SGLANG_DSPARK_HIP_COMPILER", "SGLANG_DSPARK_NVCC"):
        monkeypatch.setenv(variable, "no-such-compiler")
    notes: dict[str, None] = {}
    assert not list(compiled.compiled_rows(CONTEXT_KV, TP4, RUN, notes))
    assert [note.split(" compiler")[0] for note in notes] == [
        "no compiled code for gfx942: no AMD GPU",
        "no compiled code for gfx950: no AMD GPU",
        "no compiled code for sm_90: no CUDA",
    ]


@pytest.mark.parametrize("image", [b"", b"\x7fELF\x01" + bytes(60)])
def test_other_files_are_refused(image):
    with pytest.raises(ValueError, match="expected a 64-bit ELF file"):
        cubin.kernel(image, "any")
    with pytest.raises(ValueError, match="expected a 64-bit ELF file"):
        code_object.CodeObject(image)


def test_kinds():
    assert [kind_of(name) for name in ("v_add_f32", "global_load_dwordx4", "s_load_dword", "s_mov_b32", "s_nop")] == [
        "vector", "vector_load", "scalar_load", "scalar", "nop"
    ]  # fmt: skip
