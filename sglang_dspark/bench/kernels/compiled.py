"""What compiled code says of itself, without running: registers, spills, bytes, instructions by kind, occupancy.

The code is the one that a server would load, prebuilt or from the compiler on this machine. Occupancy is arithmetic on
registers alone, since no kernel of ours has LDS or barriers.

AMD: a SIMD has 512 vector registers a lane, given out by eight, 800 scalar ones by sixteen, and at most eight waves
(LLVM's AMDGPU target, gfx90a and later). NVIDIA: a multiprocessor of compute capability 8.0 to 10.0 has 65,536
registers, given out by 256 a warp, and at most 64 warps, four at a time (CUDA C++ Programming Guide, technical
specifications, and the sheet of NVIDIA's occupancy calculator).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator

import torch

from sglang_dspark.bench import rows
from sglang_dspark.bench.kernels import cubin
from sglang_dspark.bench.kernels.code_object import CodeObject
from sglang_dspark.bench.kernels.instruction_kinds import kind_of
from sglang_dspark.bench.kernels.op import DTYPE_NAMES, OpBench, Shape
from sglang_dspark.bench.presets import Preset
from sglang_dspark.bench.rows import Row, Run
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES
from sglang_dspark.ops.native import code
from sglang_dspark.ops.native.toolchain import AMD, NVIDIA, NotBuilt, Toolchain
from sglang_dspark.platforms import describe

# The chips of `roofline.CHIPS`, and the backend that runs on them.
TARGETS: tuple[tuple[str, str, Toolchain], ...] = (
    ("gfx942", "hip", AMD),
    ("gfx950", "hip", AMD),
    ("sm_90", "cuda", NVIDIA),
)
# A kernel is the same for every preset: heads and tokens are its arguments.
ANY_PRESET = "any"
AMD_WAVES, AMD_VECTOR_REGISTERS, AMD_SCALAR_REGISTERS = 8, 512, 800
NVIDIA_WARPS, NVIDIA_REGISTERS, WARP_LANES, WARPS_AT_A_TIME = 64, 65536, 32, 4
DISASSEMBLERS = ("llvm-objdump-22", "/opt/rocm/llvm/bin/llvm-objdump", "llvm-objdump")
INSTRUCTION = re.compile(r"^\s+(\w+)\b.*//", re.MULTILINE)


def compiled_rows(bench: OpBench, preset: Preset, run: Run, notes: dict[str, None]) -> Iterator[Row]:
    """A row for each target and pool type. What cannot be compiled or read here leaves a note."""
    for arch, backend, tools in TARGETS:
        platform = describe("amd" if tools is AMD else "nvidia", arch)
        try:
            image = code.compiled(bench.source, tools, arch).read_bytes()
        except NotBuilt as reason:
            notes[f"no compiled code for {arch}: {reason}"] = None
            continue
        for dtype in (torch.bfloat16, FP8_DTYPES[platform.fp8_format]):
            shape = Shape(preset, 1, dtype)
            name = bench.kernel_name(bench.spec(shape))
            figures = nvidia_figures(image, name) if tools is NVIDIA else amd_figures(image, name, notes)
            case = {"arch": arch, "kernel": name, "pool_dtype": pool_kind(shape)}
            how = {"basis": rows.COMPILED, "backend": backend}
            yield Row(bench.name, arch, ANY_PRESET, case, how, figures, False, run)


def pool_kind(shape: Shape) -> str:
    """The pool's type where chips stand side by side: "fp8" is each one's own format."""
    return "fp8" if shape.is_fp8 else DTYPE_NAMES[shape.pool_dtype]


def amd_figures(image: bytes, name: str, notes: dict[str, None]) -> dict[str, float]:
    """Of a kernel in an AMDGPU code object."""
    objects = CodeObject(image)
    facts = objects.metadata[name]
    waves = amd_waves(facts[".vgpr_count"], facts[".sgpr_count"])
    kinds = instruction_kinds(image, name)
    if not kinds:
        notes[f"instructions are not counted: no disassembler (tried {', '.join(DISASSEMBLERS)})"] = None
    return {
        "vector_registers_count": facts[".vgpr_count"],
        "scalar_registers_count": facts[".sgpr_count"],
        "spills_count": facts[".vgpr_spill_count"] + facts[".sgpr_spill_count"],
        "shared_bytes": facts[".group_segment_fixed_size"],
        "scratch_bytes": facts[".private_segment_fixed_size"],
        "code_bytes": objects.symbols[name][1],
        "waves_count": waves,
        "occupancy_share": waves / AMD_WAVES,
        **kinds,
    }


def nvidia_figures(image: bytes, name: str) -> dict[str, float]:
    """Of a kernel in a cubin. A spill is in the stack frame; a cubin does not count them apart."""
    facts = cubin.kernel(image, name)
    warps = nvidia_warps(facts.registers)
    return {
        "vector_registers_count": facts.registers,
        "shared_bytes": facts.shared_bytes,
        "scratch_bytes": facts.stack_bytes,
        "code_bytes": facts.code_bytes,
        "waves_count": warps,
        "occupancy_share": warps / NVIDIA_WARPS,
    }


def amd_waves(vector_registers: int, scalar_registers: int) -> int:
    """Waves that a SIMD holds at a time."""
    vector, scalar = _rounded_up(max(vector_registers, 1), 8), _rounded_up(max(scalar_registers, 1), 16)
    return min(AMD_WAVES, AMD_VECTOR_REGISTERS // vector, AMD_SCALAR_REGISTERS // scalar)


def nvidia_warps(registers: int) -> int:
    """Warps that a multiprocessor holds at a time."""
    warps = NVIDIA_REGISTERS // _rounded_up(max(registers, 1) * WARP_LANES, 256)
    return min(NVIDIA_WARPS, warps // WARPS_AT_A_TIME * WARPS_AT_A_TIME)


def instruction_kinds(image: bytes, name: str) -> dict[str, float]:
    """Instructions in the listing, whether they run or not; empty where there is no disassembler."""
    tool = next((found for name in DISASSEMBLERS if (found := shutil.which(name))), None)
    if tool is None:
        return {}
    listing = subprocess.run(
        [tool, "-d", f"--disassemble-symbols={name}", "-"], input=image, capture_output=True, check=True, timeout=60
    )
    names = INSTRUCTION.findall(listing.stdout.decode())
    # The end is padded with no-ops that never run.
    while names and names[-1] in ("s_nop", "s_code_end"):
        names.pop()
    kinds = Counter(map(kind_of, names))
    return {
        "instructions_count": len(names),
        "vector_count": kinds["vector"],
        "scalar_count": kinds["scalar"] + kinds["branch"] + kinds["end"],
        "loads_count": kinds["vector_load"] + kinds["scalar_load"],
        "stores_count": kinds["vector_store"],
        "waits_count": kinds["wait"] + kinds["nop"] + kinds["barrier"],
        "lds_count": kinds["lds"],
    }


def _rounded_up(number: int, step: int) -> int:
    return -(-number // step) * step
