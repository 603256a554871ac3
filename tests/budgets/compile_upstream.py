"""Compile SGLang's own Triton writer ahead of time: code objects and how to launch them, pickled to standard output.

Run as ``python compile_upstream.py FILE``, in a process of its own: a stand-in Triton may be in place elsewhere. The
file is the one in the installed SGLang, imported where it lies.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# As SGLang's launcher calls it for MiniMax-M3's draft; Triton makes a constant of an argument that is 1.
POINTERS = {"kv_ptr": "*bf16", "meta_ptr": "*i64", "knw_ptr": "*fp32", "cos_sin_ptr": "*fp32", "pos_ptr": "*i64",
            "loc_ptr": "*i64", "commit_lens_ptr": "*i64"}  # fmt: skip


def compiled(kernel: Any, arch: str, heads: int, warps: int) -> dict[str, Any]:
    """One code object."""
    constants = {"locs_row_width": 1, "KV": heads * 128, "D": 128, "ROT": 64, "NH": heads, "L": 5, "EPS": 1e-6,
                 "HAS_COMMIT_LENS": False, "IS_NEOX": True}  # fmt: skip
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: POINTERS.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in POINTERS},
    )
    result = triton.compile(source, target=GPUTarget("hip", arch, 64), options={"num_warps": warps})
    return {"image": result.asm["hsaco"], "name": result.metadata.name, "lds_bytes": result.metadata.shared}


def main(path: str) -> None:
    """All the variants, by (arch, heads, warps)."""
    spec = importlib.util.spec_from_file_location("upstream_writer", path)
    module = importlib.util.module_from_spec(spec)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not disturb the answer
    spec.loader.exec_module(module)
    kernel = module._fused_kv_norm_rope_write_kernel
    variants = [(arch, heads, warps) for arch in ("gfx942", "gfx950") for heads in (1, 4) for warps in (4, 1)]
    found = {variant: compiled(kernel, *variant) for variant in variants}
    pickle.dump({"triton": triton.__version__, "kernels": found}, answers)
    answers.close()


main(sys.argv[1])
