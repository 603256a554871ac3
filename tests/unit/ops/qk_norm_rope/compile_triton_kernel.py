"""Compile the Triton kernel ahead of time for three chips and print what the code looks like, as JSON."""

from __future__ import annotations

import json
import re

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_dspark import platforms
from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec, triton_kernel

POINTERS = {"qkv": "*bf16", "positions": "*i64", "slots": "*i64", "q_multipliers": "*fp32", "k_multipliers": "*fp32",
            "cos_sin": "*fp32", "k_pool": "*bf16", "v_pool": "*bf16", "q_fp8": "*u8"}  # fmt: skip
STRIDES = ("qkv_stride", "cos_sin_stride", "k_stride", "v_stride", "q_fp8_stride")
SCALES = {"k_scale": "fp32", "v_scale": "fp32", "q_scale": "fp32"}
TARGETS = {
    "gfx942": ("amd", GPUTarget("hip", "gfx942", 64)),
    "gfx950": ("amd", GPUTarget("hip", "gfx950", 64)),
    "sm_90": ("nvidia", GPUTarget("cuda", 90, 32)),
}
FP8 = {"e4m3fn": torch.float8_e4m3fn, "e4m3fnuz": torch.float8_e4m3fnuz}


def compile_for(platform: platforms.Platform, target: GPUTarget, fp8: bool) -> dict[str, int]:
    """MiniMax-M3's draft at TP 8: heads of 128, the first 64 dims rotated."""
    bf16 = torch.bfloat16
    pool = FP8[platform.fp8_format] if fp8 else bf16
    spec = QKNormRopeSpec(8, 1, 128, 64, True, 1e-6, bf16, pool, q_fp8_dtype=pool if fp8 else None)
    constants = {**triton_kernel.constants(platform, spec), "HAS_SLOTS": True, "HAS_Q_FP8": fp8}
    pointers = {**POINTERS, **({"k_pool": "*u8", "v_pool": "*u8"} if fp8 else {})}
    names = triton_kernel.qk_norm_rope_kernel.arg_names
    known = {**pointers, **SCALES}
    source = ASTSource(
        triton_kernel.qk_norm_rope_kernel,
        {name: "constexpr" if name in constants else known.get(name, "i32") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in (*pointers, *STRIDES)},
    )
    compiled = triton.compile(source, target=target, options=triton_kernel.OPTIONS)
    if target.backend == "cuda":
        spills = compiled.asm["ptx"].count(".local")
        return {"binary_bytes": len(compiled.asm["cubin"]), "spills": spills}
    return {"binary_bytes": len(compiled.asm["hsaco"]), **amd_facts(compiled.asm["amdgcn"], constants["ROWS"])}


def amd_facts(listing: str, rows: int) -> dict[str, int]:
    """What the budget counts: static instructions, of which a program executes those of its role."""
    code = listing[listing.index("\nqk_norm_rope_kernel:") : listing.index(".section")]
    instructions = re.findall(r"^\s+((?:v|s|global|flat|ds|buffer)_\w+)", code, re.MULTILINE)
    narrow = ("store_byte", "store_short", "store_short_d16_hi")
    return {
        # Two roles, K with V and Q: about half of the listing each.
        "instructions_a_row": len(instructions) // (2 * rows),
        "registers": max(map(int, re.findall(r"\.vgpr_count:\s+(\d+)", listing))),
        "spills": sum(map(int, re.findall(r"[sv]gpr_spill_count: (\d+)", listing))),
        "narrow_stores": sum(name.split("_", 1)[1] in narrow for name in instructions),
        "fused_products": sum(bool(re.match(r"v_(pk_)?fmac?_f32", name)) for name in instructions),
        "approximate_roots": sum(name.startswith("v_rsq") for name in instructions),
    }


found = {
    arch: {pool: compile_for(platforms.describe(name, arch), target, pool == "fp8") for pool in ("bf16", "fp8")}
    for arch, (name, target) in TARGETS.items()
}
print(json.dumps(found))
