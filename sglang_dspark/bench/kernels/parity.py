"""The repository's own parity suite on this machine, where this is a checkout: a wheel does not carry `tests/`.

It runs in a process of its own and is told to fail when one of the backends was skipped.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

from sglang_dspark.bench.environment import ROOT, is_checkout
from sglang_dspark.bench.kernels.op import ParityFailed
from sglang_dspark.platforms import Platform

SUITES = {
    "context_kv": "tests/parity/test_context_kv.py",
    "qk_norm_rope": "tests/parity/qk_norm_rope/test_qk_norm_rope.py",
}


# AITER's kernels follow the law within bounds of their own (`law.py`); tests/unit/ops/aiter has their tests.
BACKENDS = ("hip", "cuda", "triton", "host", "torch")


def missing() -> str:
    """Why the suite cannot run here, empty where it can."""
    if not is_checkout():
        return "an installed package has no tests: run from a checkout"
    if importlib.util.find_spec("pytest") is None:
        return "pytest is not installed: pip install 'sglang-dspark[test]'"
    return ""


def run_suite(platform: Platform, op: str, backends: Sequence[str], timeout_s: float, selection: str = "") -> str:
    """Run every case of an op for the backends on this platform's device; returns pytest's last line.

    Raises:
        ParityFailed: a case failed, a backend was skipped, or it took too long.
    """
    executor = "cpu" if platform.device_type == "cpu" else "gpu"
    wanted = " or ".join(f"{op}/{backend}/{executor}" for backend in backends)
    expression = f"({wanted}) and {selection}" if selection else wanted
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITES[op], "-k", expression]
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1" if executor == "cpu" else "0",
        "DSPARK_REQUIRE_EXECUTORS": ",".join(f"{op}/{backend}/{executor}" for backend in backends),
    }
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ParityFailed(f"{SUITES[op]} did not end within {timeout_s:.0f} s: give it more --budget-s") from error
    output = run.stdout + run.stderr
    if run.returncode:
        tail = "\n".join(output.splitlines()[-40:])
        raise ParityFailed(f"{' '.join(command)} failed with status {run.returncode}:\n{tail}")
    return output.strip().splitlines()[-1]
