"""The repository's parity suite, in a process of its own."""

from __future__ import annotations

import itertools
import subprocess

import pytest

from sglang_dspark import platforms
from sglang_dspark.bench import environment
from sglang_dspark.bench.kernels import parity
from sglang_dspark.bench.kernels.op import ParityFailed

NVIDIA = platforms.describe("nvidia", "sm_90")


@pytest.mark.parametrize("op", parity.SUITES)
def test_a_gpu_runs_its_own_executors(op, monkeypatch):
    """Without the variable the suite would quietly run on the CPU engine."""
    seen = {}

    def run(command, **options):
        seen.update(options, command=command)
        return subprocess.CompletedProcess(command, 0, "dots\n288 passed in 9 s\n", "")

    monkeypatch.setattr(parity.subprocess, "run", run)
    assert parity.run_suite(NVIDIA, op, ["cuda", "triton"], timeout_s=5) == "288 passed in 9 s"
    assert seen["command"][-3:] == [parity.SUITES[op], "-k", f"{op}/cuda/gpu or {op}/triton/gpu"]
    assert seen["env"]["SGLANG_USE_CPU_ENGINE"] == "0"
    assert seen["env"]["DSPARK_REQUIRE_EXECUTORS"] == f"{op}/cuda/gpu,{op}/triton/gpu"
    assert seen["cwd"] == environment.ROOT and seen["timeout"] == 5


def test_the_suite_is_where_it_is_looked_for():
    """One case of one op on the CPU, really run."""
    assert all((environment.ROOT / suite).is_file() for suite in parity.SUITES.values())
    last_line = parity.run_suite(platforms.describe("cpu", "cpu"), "qk_norm_rope", ["torch"], 600, "one_token")
    assert "1 passed" in last_line


def test_every_backend_of_the_suite_has_an_executor_there():
    """One that had none could not have run, and the suite would fail on every machine that offers it."""
    from tests.parity import executors
    from tests.parity.qk_norm_rope import executors as query_executors

    names = {executor.name for executor in (*executors.EXECUTORS, *query_executors.EXECUTORS)}
    for op, backend in itertools.product(parity.SUITES, parity.BACKENDS):
        assert {f"{op}/{backend}/gpu", f"{op}/{backend}/cpu"} & names, (op, backend)
    assert not [name for name in names if "aiter" in name]


def test_a_failure_shows_what_failed(monkeypatch):
    answer = subprocess.CompletedProcess([], 1, "12 K elements out of bounds", "")
    monkeypatch.setattr(parity.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(ParityFailed, match="12 K elements out of bounds"):
        parity.run_suite(NVIDIA, "context_kv", ["cuda"], timeout_s=5)


def test_a_suite_that_hangs_is_a_failure(monkeypatch):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(parity.subprocess, "run", run)
    with pytest.raises(ParityFailed, match="did not end within 5 s"):
        parity.run_suite(NVIDIA, "context_kv", ["cuda"], timeout_s=5)


def test_an_installed_package_says_that_it_has_no_suite(monkeypatch):
    assert parity.missing() == ""
    monkeypatch.setattr(parity, "is_checkout", lambda: False)
    assert "run from a checkout" in parity.missing()
