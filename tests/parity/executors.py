"""What runs a backend's code: (backend, executor) pairs, named ``op/backend/executor``.

Each takes a case, writes, and returns the whole storages of the pools, on the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv.torch_backend import TorchWriter

from .cases import Case, problem

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Executor:
    """One way of running one backend. ``missing`` says why it cannot run here, empty when it can."""

    name: str
    run: Callable[[Case], list[torch.Tensor]]
    missing: str = ""
    raises_on_broken_contract: bool = False


def _on_cpu(case: Case) -> list[torch.Tensor]:
    given = problem(case)
    choice = context_kv.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "torch")
    choice.run(*given.rows())
    return list(given.storages)


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


class TritonInterpreter:
    """Triton's interpreter in a process of its own: it must be switched on before anything imports Triton."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, case: Case) -> list[torch.Tensor]:
        """Run the case there. The child builds the same tensors from the case's name."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        pickle.dump(case.name, process.stdin)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return [torch.from_numpy(bits).view(case.dtype) for bits in answer]

    def stop(self) -> None:
        """End the child, if one was started."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        child = Path(__file__).with_name("interpreter_child.py")
        paths = os.pathsep.join(path for path in (str(child.parents[2]), *sys.path) if path)
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        return subprocess.Popen(
            [sys.executable, str(child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )


INTERPRETER = TritonInterpreter()
NO_GPU = "" if HAS_GPU else "no GPU"
NO_TRITON = "" if HAS_TRITON else "triton is not installed"

EXECUTORS = (
    Executor("context_kv/torch/cpu", _on_cpu, raises_on_broken_contract=True),
    Executor("context_kv/torch/device-path-on-cpu", _device_path_on_cpu),
    Executor("context_kv/triton/interpreter", INTERPRETER.run, NO_TRITON),
    Executor("context_kv/torch/gpu", _on_gpu("torch"), NO_GPU),
    Executor("context_kv/triton/gpu", _on_gpu("triton"), NO_GPU or NO_TRITON),
)
