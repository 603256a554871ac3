"""What runs a backend's code: each takes a case, runs it, and returns the whole storages, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.native import driver, toolchain
from sglang_dspark.ops.qk_norm_rope import gpu_kernel, host_backend, native_arguments
from sglang_dspark.ops.qk_norm_rope.torch_backend import TorchQKNormRope
from tests.amdgcn.chip import CHIPS
from tests.parity.executors import NO_CUDA, NO_GPU, NO_ROCM, NO_TRITON
from tests.parity.interpreter import TritonInterpreter
from tests.unit.ops.native import stand_in_driver

from . import emulated
from .cases import Case, problem

Storages = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Executor:
    """One way of running one backend.

    ``missing`` says why it cannot run here, empty when it can; ``covers`` says which cases the backend does not refuse.
    """

    name: str
    run: Callable[[Case], Storages]
    covers: Callable[[Case], bool] = lambda case: True
    missing: str = ""
    raises_on_broken_contract: bool = False


@cache
def native(case: Case) -> bool:
    """What the compiled kernels cover."""
    return not native_arguments.refusals(problem(case).spec)


def native_gpu(case: Case) -> bool:
    """What they cover on a GPU: there, rows are reached by 16-byte accesses."""
    gaps = (case.qkv_gap, case.q_fp8_gap, *case.pool_padding)
    return native(case) and all(gap % 8 == 0 for gap in gaps)


def _on_cpu(backend: str) -> Callable[[Case], Storages]:
    def run(case: Case) -> Storages:
        given = problem(case)
        qk_norm_rope.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, backend).run(*given.rows())
        return given.storages

    return run


def _device_path_on_cpu(case: Case) -> Storages:
    given = problem(case)
    TorchQKNormRope(given.spec, given.tables, waits_for_device=False)(*given.rows())
    return given.storages


def _through_stand_in_driver(api: driver.Api) -> Callable[[Case], Storages]:
    def run(case: Case) -> Storages:
        given = problem(case)
        opened, image = stand_in_driver.open_driver(api), stand_in_driver.image(native_arguments.SOURCE)
        gpu_kernel.bind(given.spec, given.tables, image, opened, stand_in_driver.stream)(*given.rows())
        return given.storages

    return run


def _on_gpu(backend: str) -> Callable[[Case], Storages]:
    def run(case: Case) -> Storages:
        given = problem(case, "cuda:0")
        qk_norm_rope.choose(platforms.current(), given.spec, given.tables, backend).run(*given.rows())
        return {name: storage.cpu() for name, storage in given.storages.items()}

    return run


INTERPRETER = TritonInterpreter(Path(__file__).with_name("interpreter_child.py"))


def in_interpreter(case: Case) -> Storages:
    """Run the case in Triton's interpreter."""
    dtypes = {name: storage.dtype for name, storage in problem(case).storages.items()}
    return {name: torch.from_numpy(found).view(dtypes[name]) for name, found in INTERPRETER.ask(case.name).items()}


def host_backend_missing() -> str:
    """Why the host backend cannot run here."""
    try:
        host_backend.library()
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


NO_COMPILER = host_backend_missing()

EXECUTORS = (
    Executor("qk_norm_rope/torch/cpu", _on_cpu("torch"), raises_on_broken_contract=True),
    Executor("qk_norm_rope/torch/device-path-on-cpu", _device_path_on_cpu),
    Executor("qk_norm_rope/triton/interpreter", in_interpreter, missing=NO_TRITON),
    Executor("qk_norm_rope/host/cpu", _on_cpu("host"), native, NO_COMPILER, raises_on_broken_contract=True),
    Executor("qk_norm_rope/hip/stand-in-driver", _through_stand_in_driver(driver.HIP), native_gpu, NO_COMPILER),
    Executor("qk_norm_rope/cuda/stand-in-driver", _through_stand_in_driver(driver.CUDA), native_gpu, NO_COMPILER),
    *(
        Executor(f"qk_norm_rope/hip/{name}-emulated", emulated.executor(chip), native_gpu, emulated.missing(name))
        for name, chip in CHIPS.items()
    ),
    Executor("qk_norm_rope/torch/gpu", _on_gpu("torch"), missing=NO_GPU),
    Executor("qk_norm_rope/triton/gpu", _on_gpu("triton"), missing=NO_GPU or NO_TRITON),
    Executor("qk_norm_rope/hip/gpu", _on_gpu("hip"), native_gpu, NO_ROCM),
    Executor("qk_norm_rope/cuda/gpu", _on_gpu("cuda"), native_gpu, NO_CUDA),
)
