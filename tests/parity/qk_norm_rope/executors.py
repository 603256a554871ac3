"""What runs a backend's code: each takes a case, runs it, and returns the whole storages, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.qk_norm_rope.torch_backend import TorchQKNormRope

from .cases import Case, problem

Storages = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Executor:
    """One way of running one backend. ``missing`` says why it cannot run here, empty when it can.

    ``refuses`` says why a case is none of the backend's, empty when it is one.
    """

    name: str
    run: Callable[[Case], Storages]
    missing: str = ""
    raises_on_broken_contract: bool = False
    refuses: Callable[[Case], str] = lambda case: ""


def _on_cpu(case: Case) -> Storages:
    given = problem(case)
    qk_norm_rope.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "torch").run(*given.rows())
    return given.storages


def _device_path_on_cpu(case: Case) -> Storages:
    given = problem(case)
    TorchQKNormRope(given.spec, given.tables, waits_for_device=False)(*given.rows())
    return given.storages


EXECUTORS = (
    Executor("qk_norm_rope/torch/cpu", _on_cpu, raises_on_broken_contract=True),
    Executor("qk_norm_rope/torch/device-path-on-cpu", _device_path_on_cpu),
)
