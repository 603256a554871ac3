"""The shipped gfx942 and gfx950 code, run by the interpreter of `tests/amdgcn` behind the driver's own calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from sglang_dspark.ops.native import code, toolchain
from sglang_dspark.ops.qk_norm_rope import gpu_kernel
from sglang_dspark.ops.qk_norm_rope.native_arguments import SOURCE
from tests.amdgcn import toolchain as llvm
from tests.amdgcn.chip import Chip
from tests.amdgcn.memory import Memory
from tests.parity.emulated import STREAM, EmulatedDriver, storage_bytes

from .cases import Case, Problem, problem


@cache
def image(arch: str) -> bytes:
    """The code object that a gfx942 or gfx950 machine would load."""
    return code.compiled(SOURCE, toolchain.AMD, arch).read_bytes()


@cache
def missing(arch: str) -> str:
    """Why the code of this chip cannot be run here, empty when it can."""
    if llvm.MISSING:
        return llvm.MISSING
    try:
        code.compiled(SOURCE, toolchain.AMD, arch)
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


def visible_memory(given: Problem) -> Memory:
    """What a launch may touch: it writes the storages and reads the rest."""
    memory = Memory()
    for name, storage in given.storages.items():
        memory.add(name, storage_bytes(storage), writable=True)
    tables = given.tables
    read = {"positions": given.positions, "slots": given.slots, "cos and sin": tables.cos_sin,
            "Q's multipliers": tables.q_norm_multipliers, "K's multipliers": tables.k_norm_multipliers}  # fmt: skip
    for name, tensor in read.items():
        if tensor is not None:
            memory.add(name, storage_bytes(tensor))
    return memory


def run(given: Problem, chip: Chip, preload: bool = True) -> EmulatedDriver:
    """Run a problem with the code of a chip; returns the driver, which has counted what it ran."""
    emulated = EmulatedDriver(chip, visible_memory(given), preload)
    op = gpu_kernel.bind(given.spec, given.tables, image(chip.name), emulated.opened(), lambda: STREAM)
    op(*given.rows())
    return emulated


def executor(chip: Chip) -> Callable[[Case], dict[str, torch.Tensor]]:
    """What runs a case on a chip's code."""

    @cache
    def run_case(case: Case) -> dict[str, torch.Tensor]:
        given = problem(case)
        run(given, chip)
        return given.storages

    return run_case
