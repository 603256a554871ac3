"""A required executor that did not run fails the run: the guard itself, in a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("required", "code"), [("context_kv/torch/cpu", 0), ("context_kv/torch/cpu, context_kv/triton/no-such", 1)]
)
def test_required_executors(required, code):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/parity/test_context_kv.py"]
    selection = ["-k", "torch/cpu and one_token"]
    environment = {**os.environ, "DSPARK_REQUIRE_EXECUTORS": required}
    run = subprocess.run([*command, *selection], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == code, run.stdout + run.stderr
    assert "ran: context_kv/torch/cpu" in run.stdout
    assert ("required and did not run: context_kv/triton/no-such" in run.stdout) == bool(code)
