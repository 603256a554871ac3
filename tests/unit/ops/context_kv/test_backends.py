"""What the torch and Triton backends refuse, and the errors only a CPU can give."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import torch_backend, triton_backend
from sglang_dspark.ops.dispatch import NoBackend

CPU, H200 = platforms.describe("cpu", "cpu"), platforms.describe("nvidia", "sm_90")
NEEDS_GPU = "needs a GPU, or TRITON_INTERPRET=1"
NOT_INSTALLED = "triton is not installed"


@pytest.mark.parametrize("backend", [torch_backend.BACKEND, triton_backend.BACKEND], ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pool_layout": "hnd"}, "pool layout hnd is not covered, only nhd"),
        ({"pool_layout": "vectorized_5d"}, "pool layout vectorized_5d is not covered, only nhd"),
        ({"pool_dtype": torch.float8_e4m3fn}, "fp8 pool (torch.float8_e4m3fn) is not covered"),
        ({"pool_dtype": torch.float8_e4m3fnuz}, "fp8 pool (torch.float8_e4m3fnuz) is not covered"),
        ({"pool_dtype": torch.float32}, "pool dtype torch.float32 differs from kv dtype torch.bfloat16"),
        ({"slots_per_layer": True}, "slots per layer are not covered"),
    ],
)
def test_refusals_of_a_spec(spec, backend, fields, reason):
    assert reason not in backend.refusals(H200, spec)
    assert reason in backend.refusals(H200, replace(spec, **fields))


def test_torch_covers_every_platform(spec):
    assert torch_backend.refusals(CPU, spec) == torch_backend.refusals(H200, spec) == []


def test_triton_needs_a_gpu_or_its_interpreter(spec, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert NEEDS_GPU in triton_backend.refusals(CPU, spec)
    assert NEEDS_GPU not in triton_backend.refusals(H200, spec)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert NEEDS_GPU not in triton_backend.refusals(CPU, spec)


def test_missing_triton_is_a_refusal(spec, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "triton.runtime", raising=False)
    monkeypatch.delitem(sys.modules, "triton.runtime.jit", raising=False)
    assert triton_backend.refusals(H200, spec) == [NOT_INSTALLED]


def test_stand_in_triton_is_a_refusal(spec, monkeypatch):
    """CPU installs put modules named triton in place so that imports pass; they compile nothing."""
    for name in ("triton", "triton.runtime", "triton.runtime.jit"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert triton_backend.refusals(H200, spec) == [NOT_INSTALLED]


def test_cpu_takes_torch_and_says_why(spec, tables, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choice = context_kv.choose(CPU, spec, tables)
    assert choice.backend == "torch"
    assert choice.describe().startswith("context_kv=torch (refused: hip: needs an AMD GPU | cuda: ")
    assert f"triton: {NEEDS_GPU}" in choice.describe()
    assert "host: head_dim 16 is not covered, only 64, 128, 256; rotary_dim 8" in choice.describe()


def test_refused_layout_raises_before_its_tables_are_checked(spec):
    with pytest.raises(NoBackend, match="torch: pool layout hnd is not covered"):
        context_kv.choose(CPU, replace(spec, pool_layout="hnd"), None)


@pytest.mark.parametrize(
    ("positions", "slots", "message"),
    [
        ((0, 6), (1, 2), "row 1 asks for position 6, outside the cos/sin table [(]0 to 5[)]"),
        ((-1, 0), (1, 2), "row 0 asks for position -1"),
        ((0, 0), (1, 10), "row 1 asks for slot 10, outside the pools [(]0 to 9[)]"),
    ],
)
def test_rows_outside_are_errors_on_a_cpu_and_write_nothing(spec, tables, positions, slots, message):
    run = context_kv.choose(CPU, spec, tables).run
    kv = torch.ones(2, 2, 2, 2, 16, dtype=torch.bfloat16)
    with pytest.raises(IndexError, match=message):
        run(kv, torch.tensor(positions), torch.tensor(slots))
    assert not any(pool.any() for pool in tables.k_pools + tables.v_pools)
