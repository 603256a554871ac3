"""A backend against the law, in graphs that are replayed with changed inputs: what a wheel can check by itself."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets
from sglang_dspark.bench.kernels import law
from sglang_dspark.bench.kernels.context_kv import BENCH as CONTEXT_KV
from sglang_dspark.bench.kernels.op import ParityFailed
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH as QK_NORM_ROPE
from sglang_dspark.ops.context_kv import torch_backend
from sglang_dspark.ops.qk_norm_rope import torch_backend as query_backend

from .machines import FakeMachine

CPU = platforms.describe("cpu", "cpu")
TP4 = [presets.PRESETS["m3-tp4"]]
BF16 = [torch.bfloat16]
ops = pytest.mark.parametrize("bench", [CONTEXT_KV, QK_NORM_ROPE], ids=lambda bench: bench.name)


def check(bench, machine=None, backend="torch", dtypes=BF16):
    return law.check(bench, CPU, backend, TP4, dtypes, machine or FakeMachine(), "cpu")


@ops
def test_every_replay_of_every_shape_is_compared(bench):
    """Three changes of three shapes, and of the writer once more with commit lengths; its torch covers no fp8 pool."""
    times = {"context_kv": 18, "qk_norm_rope": 9}[bench.name]
    assert check(bench) == times
    fp8 = [*BF16, torch.float8_e4m3fn]
    assert check(bench, dtypes=fp8) == (times if bench is CONTEXT_KV else 2 * times)


def frozen_inputs(call):
    """A graph that kept the inputs of its capture."""
    copies = [tensor.clone() for tensor in call.args]
    return lambda: call.func(*copies)


def frozen_slots(call):
    """A graph in which one pointer is a copy's."""
    values, positions, slots, *rest = call.args
    copy = slots.clone()
    return lambda: call.func(values, positions, copy, *rest)


def empty_graph(call):
    """A launch that went to another stream than the captured one."""
    return lambda: None


@ops
@pytest.mark.parametrize("capture", [frozen_inputs, frozen_slots, empty_graph])
def test_a_broken_graph_is_found(bench, capture):
    machine = FakeMachine()
    machine.capture = capture
    with pytest.raises(ParityFailed, match=rf"torch, {bench.name} m3-tp4 T=1 bf16: replay \d: "):
        check(bench, machine)


def test_a_call_that_cannot_be_captured_is_parity_failed():
    def capture(call):
        raise RuntimeError("operation not permitted when stream is capturing")

    machine = FakeMachine()
    machine.capture = capture
    with pytest.raises(ParityFailed, match="m3-tp4 T=1 bf16: cannot be captured or replayed: operation not"):
        check(CONTEXT_KV, machine)


def test_commit_lengths_are_read_at_replay():
    def capture(call):
        if len(call.args) == 3:
            return call
        copy = call.args[3].clone()
        return lambda: call.func(*call.args[:3], copy)

    machine = FakeMachine()
    machine.capture = capture
    with pytest.raises(ParityFailed, match="m3-tp4 T=48 bf16 with commit lengths: replay 1: "):
        check(CONTEXT_KV, machine)


@pytest.mark.parametrize(("bench", "backend"), [(CONTEXT_KV, torch_backend), (QK_NORM_ROPE, query_backend)])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda right: right * 1.01, "elements differ, at most"),
        (lambda right: _with(right, 3.0), "further off than roundings explain"),
    ],
)
def test_a_wrong_kernel_is_found(bench, backend, wrong, message, monkeypatch):
    """All of it a little off, or one element a lot."""
    right = backend.normalised_and_rotated
    monkeypatch.setattr(backend, "normalised_and_rotated", lambda *given: wrong(right(*given)))
    with pytest.raises(ParityFailed, match=message):
        check(bench)


def _with(values: torch.Tensor, more: float) -> torch.Tensor:
    values = values.clone()
    values.view(-1)[5] += more
    return values


def test_a_write_into_another_slot_is_found():
    """The sentinel bytes of every slot that nobody stored to are compared."""
    machine = FakeMachine()
    pools = []

    def capture(call):
        def replay():
            call()
            pools.append(call.func.tables.k_pools[0])
            pools[-1].view(torch.int16)[0, 0, 0] ^= 1

        return replay

    machine.capture = capture
    with pytest.raises(ParityFailed, match="K of layer 0: 1 elements changed that are nobody's"):
        check(CONTEXT_KV, machine)


def test_a_backend_that_covers_nothing_compares_nothing():
    assert check(CONTEXT_KV, backend="hip") == 0


def test_aiter_rounds_elsewhere_and_is_held_to_sizes():
    """Every element a little off is its rounding points; one element far off is a fault, whoever made it."""
    given = QK_NORM_ROPE.build(law.Shape(TP4[0], 7, torch.bfloat16), "cpu", 64, 64, sets=1)
    QK_NORM_ROPE.reference(given.spec, given.tables, *given.sets[0].rows)
    k = QK_NORM_ROPE.written(given, given.sets[0])[1]
    off = law.Written(k.name, (k.tensor.float() * 1.01).to(torch.bfloat16), k.rounds, k.by_slot)
    slots = given.sets[0].slots
    assert "elements differ" in law.differs_from_law(off, k, slots)
    assert law.differs_from_law(off, k, slots, law.tolerance_of("aiter")) == ""
    off.tensor[3, 0, 5] += 1
    assert "further off" in law.differs_from_law(off, k, slots, law.tolerance_of("aiter"))
    assert law.tolerance_of("hip") == law.OURS
