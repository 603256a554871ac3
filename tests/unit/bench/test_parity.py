"""Parity before timing: the suite in a process of its own, and graphs replayed with changed inputs."""

from __future__ import annotations

import subprocess

import pytest

from sglang_dspark import platforms
from sglang_dspark.bench import parity
from sglang_dspark.bench.parity import ParityFailed
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import torch_backend
from tests.parity.cases import CASES

from .machines import FakeMachine

CPU = platforms.describe("cpu", "cpu")
NVIDIA = platforms.describe("nvidia", "sm_90")


def test_a_gpu_runs_its_own_executors(monkeypatch):
    """Without the variable the suite would quietly run on the CPU engine."""
    seen = {}

    def run(command, **options):
        seen.update(options, command=command)
        return subprocess.CompletedProcess(command, 0, "dots\n288 passed in 9 s\n", "")

    monkeypatch.setattr(parity.subprocess, "run", run)
    assert parity.run_suite(NVIDIA, ["cuda", "triton"], timeout_s=5) == "288 passed in 9 s"
    assert seen["command"][-2:] == ["-k", "cuda/gpu or triton/gpu"]
    assert seen["env"]["SGLANG_USE_CPU_ENGINE"] == "0"
    assert seen["env"]["DSPARK_REQUIRE_EXECUTORS"] == "context_kv/cuda/gpu,context_kv/triton/gpu"
    assert seen["cwd"] == parity.ROOT and seen["timeout"] == 5


def test_a_failure_shows_what_failed(monkeypatch):
    answer = subprocess.CompletedProcess([], 1, "12 K elements out of bounds", "")
    monkeypatch.setattr(parity.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(ParityFailed, match="12 K elements out of bounds"):
        parity.run_suite(NVIDIA, ["cuda"], timeout_s=5)


def test_a_suite_that_hangs_is_a_failure(monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(parity.subprocess, "run", run)
    with pytest.raises(ParityFailed, match="did not end within 5 s"):
        parity.run_suite(NVIDIA, ["cuda"], timeout_s=5)


def test_the_graph_cases_exist():
    assert set(parity.GRAPH_CASES) <= {case.name for case in CASES}


def test_replays_follow_the_law():
    """Three replays of each case that the backend covers; torch covers no fp8 pool and no slots per layer."""
    assert parity.check_replays(CPU, "torch", FakeMachine(), "cpu") == 3 * (len(parity.GRAPH_CASES) - 3)


def frozen_inputs(call):
    """A graph that kept the inputs of its capture."""
    writer, *rows = call.func, *call.args
    copies = [None if tensor is None else tensor.clone() for tensor in rows]
    return lambda: writer(*copies)


def frozen_slots(call):
    """A graph in which one pointer is a copy's."""
    kv, positions, slots, commit_lens = call.args
    copy = slots.clone()
    return lambda: call.func(kv, positions, copy, commit_lens)


def empty_graph(call):
    """A launch that went to another stream than the captured one."""
    return lambda: None


@pytest.mark.parametrize("capture", [frozen_inputs, frozen_slots, empty_graph])
def test_a_broken_graph_is_found(capture):
    machine = FakeMachine()
    machine.capture = capture
    with pytest.raises(ParityFailed, match="torch, case plain from a graph: replay [01]: "):
        parity.check_replays(CPU, "torch", machine, "cpu", ["plain"])


def test_a_call_that_cannot_be_captured_is_parity_failed():
    def capture(call):
        raise RuntimeError("operation not permitted when stream is capturing")

    machine = FakeMachine()
    machine.capture = capture
    with pytest.raises(ParityFailed, match="case plain from a graph cannot be captured or replayed: operation not"):
        parity.check_replays(CPU, "torch", machine, "cpu", ["plain"])


def test_commit_lengths_are_read_at_replay():
    def capture(call):
        kv, positions, slots, commit_lens = call.args
        copy = commit_lens.clone()
        return lambda: call.func(kv, positions, slots, copy)

    machine = FakeMachine()
    machine.capture = capture
    with pytest.raises(ParityFailed, match="case uneven_commits from a graph: replay 1: "):
        parity.check_replays(CPU, "torch", machine, "cpu", ["uneven_commits"])


def test_a_wrong_kernel_is_found(monkeypatch):
    right = torch_backend.normalised_and_rotated
    monkeypatch.setattr(torch_backend, "normalised_and_rotated", lambda *given: right(*given) * 1.01)
    with pytest.raises(ParityFailed, match="K elements differ, at most"):
        parity.check_replays(CPU, "torch", FakeMachine(), "cpu", ["plain"])


def test_a_backend_that_covers_nothing_is_not_counted():
    assert context_kv.OP.backend("hip").refusals(CPU, None)
    assert parity.check_replays(CPU, "hip", FakeMachine(), "cpu") == 0


def test_a_suite_that_cannot_be_imported_is_said(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(parity.importlib, "import_module", fail)
    with pytest.raises(ParityFailed, match="No module named 'tests.parity.cases'.*`test` extra"):
        parity.check_replays(CPU, "torch", FakeMachine(), "cpu")
