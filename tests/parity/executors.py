"""What runs a backend's code: (backend, executor) pairs, named ``op/backend/executor``.

Each takes a case, writes, and returns the whole storages of the pools, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import gpu_writer, host_backend
from sglang_dspark.ops.context_kv.torch_backend import TorchWriter
from sglang_dspark.ops.native import driver, toolchain
from tests import real_triton
from tests.amdgcn.chip import CHIPS
from tests.unit.ops.native import stand_in_driver

from . import emulated
from .cases import Case, problem
from .interpreter import TritonInterpreter

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = real_triton.INSTALLED


@dataclass(frozen=True)
class Executor:
    """One way of running one backend.

    ``missing`` says why it cannot run here, empty when it can; ``covers`` says which cases the backend does not refuse.
    """

    name: str
    run: Callable[[Case], list[torch.Tensor]]
    covers: Callable[[Case], bool]
    missing: str = ""
    raises_on_broken_contract: bool = False


def plain(case: Case) -> bool:
    """What torch and Triton cover: a copy into a pool of kv's type, with one slot for all layers."""
    return case.pool_dtype is None and not case.slots_per_layer


def native(case: Case) -> bool:
    """What the compiled kernels cover."""
    return case.dtype == torch.bfloat16 and case.head_dim in (64, 128, 256) and case.rotary_dim % 16 == 0


def native_gpu(case: Case) -> bool:
    """What they cover on a GPU: there, rows of a pool are reached by 16-byte accesses."""
    return native(case) and all(padding % 8 == 0 for padding in case.pool_padding)


def _on_cpu(backend: str) -> Callable[[Case], list[torch.Tensor]]:
    def run(case: Case) -> list[torch.Tensor]:
        given = problem(case)
        choice = context_kv.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, backend)
        choice.run(*given.rows())
        return list(given.storages)

    return run


def _through_stand_in_driver(api: driver.Api) -> Callable[[Case], list[torch.Tensor]]:
    def run(case: Case) -> list[torch.Tensor]:
        given = problem(case)
        opened = stand_in_driver.open_driver(api)
        image = stand_in_driver.image()
        gpu_writer.bind(given.spec, given.tables, image, opened, stand_in_driver.stream)(*given.rows())
        return list(given.storages)

    return run


def _device_path_on_cpu(case: Case) -> list[torch.Tensor]:
    given = problem(case)
    TorchWriter(given.spec, given.tables, waits_for_device=False)(*given.rows())
    return list(given.storages)


def _on_gpu(backend: str) -> Callable[[Case], list[torch.Tensor]]:
    def run(case: Case) -> list[torch.Tensor]:
        given = problem(case, "cuda:0")
        context_kv.choose(platforms.current(), given.spec, given.tables, backend).run(*given.rows())
        return [storage.cpu() for storage in given.storages]

    return run


INTERPRETER = TritonInterpreter(Path(__file__).with_name("interpreter_child.py"))


def in_interpreter(case: Case) -> list[torch.Tensor]:
    """Run the case in Triton's interpreter."""
    return [torch.from_numpy(bits).view(case.dtype) for bits in INTERPRETER.ask(case.name)]


def host_backend_missing() -> str:
    """Why the host backend cannot run here."""
    try:
        host_backend.library()
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


NO_GPU = "" if HAS_GPU else "no GPU"
NO_TRITON = "" if HAS_TRITON else "triton is not installed"

NO_COMPILER = host_backend_missing()
NO_CUDA = "" if HAS_GPU and torch.version.hip is None else "no NVIDIA GPU"
NO_ROCM = "" if HAS_GPU and torch.version.hip is not None else "no AMD GPU"

EXECUTORS = (
    Executor("context_kv/torch/cpu", _on_cpu("torch"), plain, raises_on_broken_contract=True),
    Executor("context_kv/torch/device-path-on-cpu", _device_path_on_cpu, plain),
    Executor("context_kv/triton/interpreter", in_interpreter, plain, NO_TRITON),
    Executor("context_kv/host/cpu", _on_cpu("host"), native, NO_COMPILER, raises_on_broken_contract=True),
    Executor("context_kv/hip/stand-in-driver", _through_stand_in_driver(driver.HIP), native_gpu, NO_COMPILER),
    Executor("context_kv/cuda/stand-in-driver", _through_stand_in_driver(driver.CUDA), native_gpu, NO_COMPILER),
    *(
        Executor(f"context_kv/hip/{arch}-emulated", emulated.executor(chip), native_gpu, emulated.missing(arch))
        for arch, chip in CHIPS.items()
    ),
    Executor("context_kv/torch/gpu", _on_gpu("torch"), plain, NO_GPU),
    Executor("context_kv/triton/gpu", _on_gpu("triton"), plain, NO_GPU or NO_TRITON),
    Executor("context_kv/hip/gpu", _on_gpu("hip"), native_gpu, NO_ROCM),
    Executor("context_kv/cuda/gpu", _on_gpu("cuda"), native_gpu, NO_CUDA),
)
