"""Compile the Triton kernel ahead of time for three chips and print what the code looks like, as JSON."""

from __future__ import annotations

import json
import re

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_dspark import platforms
from sglang_dspark.ops.context_kv import ContextKVSpec, triton_kernel

POINTERS = {
    "kv": "*bf16",
    "positions": "*i64",
    "slots": "*i64",
    "commit_lens": "*i32",
    "pools": "*i64",
    "multipliers": "*fp32",
    "cos_sin": "*fp32",
}
STRIDES = ("kv_stride", "multipliers_stride", "cos_sin_stride")
TARGETS = {
    "gfx942": ("amd", GPUTarget("hip", "gfx942", 64)),
    "gfx950": ("amd", GPUTarget("hip", "gfx950", 64)),
    "sm_90": ("nvidia", GPUTarget("cuda", 90, 32)),
}


def compile_for(platform: platforms.Platform, target: GPUTarget, heads: int) -> dict[str, int]:
    """MiniMax-M3's draft: five layers, heads of 128, the first 64 dims rotated."""
    bf16 = torch.bfloat16
    spec = ContextKVSpec(5, heads, 128, 64, True, 1e-6, bf16, bf16)
    constants = {**triton_kernel.constants(platform, spec, 16), "HAS_COMMIT_LENS": True}
    names = triton_kernel.write_kernel.arg_names
    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names}
    source = ASTSource(
        triton_kernel.write_kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in (*POINTERS, *STRIDES)},
    )
    assembly = triton.compile(source, target=target, options=triton_kernel.OPTIONS).asm
    if target.backend == "cuda":
        return {"binary_bytes": len(assembly["cubin"])}
    rows = constants["TOKENS"] * constants["H_BLOCK"]
    return {"binary_bytes": len(assembly["hsaco"]), **amd_facts(assembly["amdgcn"], rows)}


def amd_facts(listing: str, rows: int) -> dict[str, int]:
    """What the budget counts: static instructions, which the kernel executes nearly all once."""
    code = listing[listing.index("\nwrite_kernel:") : listing.index("s_endpgm")]
    instructions = re.findall(r"^\s+((?:v|s|global|flat|ds|buffer)_\w+)", code, re.MULTILINE)
    spills = re.findall(r"[sv]gpr_spill_count: (\d+)", listing)
    narrow = ("store_byte", "store_short", "store_short_d16_hi", "store_dword")
    return {
        "instructions_a_row": len(instructions) // rows,
        "spills": sum(map(int, spills)),
        "stores_under_8_bytes": sum(name.split("_", 1)[1] in narrow for name in instructions),
        "fused_products": sum(bool(re.match(r"v_(pk_)?fmac?_f32", name)) for name in instructions),
        "approximate_roots": sum(name.startswith("v_rsq") for name in instructions),
    }


found = {
    arch: {heads: compile_for(platforms.describe(name, arch), target, heads) for heads in (1, 4)}
    for arch, (name, target) in TARGETS.items()
}
print(json.dumps(found))
