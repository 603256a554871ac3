"""What every AMD kernel of ours keeps to, whichever of its variants a model picks."""

from __future__ import annotations

import re

import pytest

from sglang_dspark.bench.kernels.code_object import CodeObject
from sglang_dspark.ops.native import code, toolchain
from tests.amdgcn import toolchain as llvm
from tests.amdgcn.chip import CHIPS
from tests.amdgcn.decode import parse_listing
from tests.parity import emulated

SOURCES = sorted(path.stem for path in code.SOURCES.glob("*.cpp"))
targets = pytest.mark.parametrize("arch", CHIPS)
sources = pytest.mark.parametrize("source", SOURCES)


def image(source: str, arch: str, cannot_check) -> bytes:
    if reason := emulated.missing(arch):
        cannot_check(reason)
    return code.compiled(source, toolchain.AMD, arch).read_bytes()


@sources
@targets
def test_registers_and_what_must_not_be_there(source, arch, cannot_check):
    """128 vector registers leave four waves to a SIMD; the variants that are served have a tighter budget."""
    kernels = CodeObject(image(source, arch, cannot_check)).metadata
    assert len(kernels) >= 12
    for name, facts in kernels.items():
        assert facts[".vgpr_count"] <= 128, name
        assert facts[".vgpr_spill_count"] == facts[".sgpr_spill_count"] == facts[".agpr_count"] == 0, name
        assert facts[".private_segment_fixed_size"] == facts[".group_segment_fixed_size"] == 0, name
        assert not facts[".uses_dynamic_stack"], name


@sources
def test_gfx950_takes_no_fused_operand_from_a_high_half(source, cannot_check):
    """A compiler project reports that gfx950 at times drops the low half's sum of v_pk_fma_f32 with op_sel:[0,1,0]
    (ROCm/rocMLIR pull request 2459, August 2026). Unconfirmed here, and cheap to stay clear of."""
    listing = llvm.disassemble(image(source, "gfx950", cannot_check))
    fused = parse_listing("\n".join(re.findall(r".*v_pk_fma_f32.*", listing)))
    assert not [str(one) for one in fused if "1" in one.modifiers.get("op_sel", "")]


def test_there_are_kernels():
    assert "context_kv_writer" in SOURCES
