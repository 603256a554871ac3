"""The shipped gfx942 and gfx950 code objects, run by the interpreter of `tests/amdgcn` behind the driver's own calls.

`EmulatedDriver` stands where libamdhip64 does, so the backend's argument packing and launch geometry are used as they
are. The kernel sees the host's addresses, and only the tensors that the launch was given: any other access faults.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from sglang_dspark.ops.context_kv import gpu_writer
from sglang_dspark.ops.native import code, driver, toolchain
from tests.amdgcn import toolchain as llvm
from tests.amdgcn.chip import Chip
from tests.amdgcn.counters import Counters
from tests.amdgcn.launch import Kernel
from tests.amdgcn.memory import Memory

from .cases import Case, Problem, problem

STREAM = 0xE31


@cache
def kernel(image: bytes, name: str, chip: Chip) -> Kernel:
    """A kernel, bound once."""
    return Kernel(image, name, chip)


@cache
def image(arch: str) -> bytes:
    """The code object that a gfx942 or gfx950 machine would load."""
    return code.compiled(gpu_writer.SOURCE, toolchain.AMD, arch).read_bytes()


def missing(arch: str) -> str:
    """Why the code of this chip cannot be run here, empty when it can."""
    if llvm.MISSING:
        return llvm.MISSING
    try:
        code.compiled(gpu_writer.SOURCE, toolchain.AMD, arch)
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


@dataclass
class EmulatedDriver:
    """The three calls of libamdhip64 that `sglang_dspark.ops.native.driver` makes, for one chip and its memory."""

    chip: Chip
    memory: Memory
    preload: bool = True
    counters: Counters = field(default_factory=Counters)
    grids: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kernels: list[Kernel] = []
        self._modules: list[bytes] = []
        # Functions, since the driver gives them argument types as it does those of a library.
        self.hipModuleLoadData: Callable[..., int] = lambda *arguments: self._load(*arguments)
        self.hipModuleGetFunction: Callable[..., int] = lambda *arguments: self._get(*arguments)
        self.hipModuleLaunchKernel: Callable[..., int] = lambda *arguments: self._launch(*arguments)

    def opened(self) -> driver.Driver:
        """As `driver.open_driver` gives it."""
        return driver.Driver(driver.HIP, self)

    def _load(self, module: Any, data: Any) -> int:
        start = ctypes.cast(data, ctypes.c_void_p).value
        header = ctypes.string_at(start, 64)
        # The section headers end the file.
        sections, size, count = *struct.unpack_from("<Q", header, 40), *struct.unpack_from("<2H", header, 58)
        self._modules.append(ctypes.string_at(start, sections + size * count))
        module._obj.value = len(self._modules)
        return 0

    def _get(self, function: Any, module: ctypes.c_void_p, name: bytes) -> int:
        self.kernels.append(kernel(self._modules[module.value - 1], name.decode(), self.chip))
        function._obj.value = len(self.kernels)
        return 0

    def _launch(self, function: ctypes.c_void_p, *rest: Any) -> int:
        grid, block, (lds_bytes, stream, parameters, options) = rest[:3], rest[3:6], rest[6:]
        assert stream == STREAM and parameters is None
        assert (options[0], options[2], options[4]) == (driver.BUFFER_POINTER, driver.BUFFER_SIZE, driver.HIP.end)
        size = ctypes.c_size_t.from_address(options[3]).value
        arguments = ctypes.string_at(options[1], size)
        self.grids.append(grid)
        started = self.kernels[function.value - 1]
        self.counters.add(started.launch(grid, block, arguments, self.memory, self.preload, lds_bytes))
        return 0


def storage_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The whole allocation under a tensor, [bytes] uint8, shared with it."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr()))


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers of the same width."""
    return tensor.view({1: torch.uint8, 2: torch.int16}[tensor.itemsize])


def visible_memory(given: Problem) -> Memory:
    """What a launch may touch: it writes the pools and reads the rest."""
    memory = Memory()
    for index, storage in enumerate(given.storages):
        memory.add(f"{'KV'[index % 2]} pool of layer {index // 2}", storage_bytes(storage), writable=True)
    read = {"kv": given.kv, "positions": given.positions, "slots": given.slots, "commit lengths": given.commit_lens,
            "multipliers": given.tables.norm_multipliers, "cos and sin": given.tables.cos_sin}  # fmt: skip
    for name, tensor in read.items():
        if tensor is not None:
            memory.add(name, storage_bytes(tensor))
    return memory


def write(given: Problem, chip: Chip, preload: bool = True) -> EmulatedDriver:
    """Write a problem's rows with the code of a chip; returns the driver, which has counted what it ran."""
    emulated = EmulatedDriver(chip, visible_memory(given), preload)
    writer = gpu_writer.bind(given.spec, given.tables, image(chip.name), emulated.opened(), lambda: STREAM)
    keep_visible(emulated.memory, writer.keeps)
    writer(*given.rows())
    return emulated


def keep_visible(memory: Memory, tensors: Sequence[torch.Tensor]) -> None:
    """Add what a writer made for itself: the layers' table and the commit length of rows without any."""
    for index, tensor in enumerate(tensors):
        memory.add(f"the writer's own tensor {index}", storage_bytes(tensor))


def executor(chip: Chip) -> Callable[[Case], list[torch.Tensor]]:
    """What runs a case on a chip's code."""

    @cache
    def run(case: Case) -> list[torch.Tensor]:
        given = problem(case)
        write(given, chip)
        return list(given.storages)

    return run
