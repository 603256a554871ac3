"""The Triton kernel compiles for the chips we serve on, without one of them, and stays within its budget.

In a process of its own: compiled and interpreted kernels cannot share one, and a stand-in Triton may be in place here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import real_triton

COMPILE = Path(__file__).with_name("compile_triton_kernel.py")
needs_triton = pytest.mark.skipif(not real_triton.INSTALLED, reason="triton is not installed")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    environment = {name: value for name, value in os.environ.items() if name not in real_triton.KEPT_OUT}
    # Its own cache, so that it really compiles.
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in (str(COMPILE.parents[4]), *sys.path) if path)
    output = subprocess.run([sys.executable, str(COMPILE)], env=environment, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    return json.loads(output.stdout.splitlines()[-1])


@needs_triton
@pytest.mark.parametrize("heads", ["1", "4"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "sm_90"])
def test_compiles(compiled, arch, heads):
    assert compiled[arch][heads]["binary_bytes"] > 1000


@needs_triton
@pytest.mark.parametrize("heads", ["1", "4"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_amd_code_is_within_its_budget(compiled, arch, heads):
    """A lost alignment hint shows as 2-byte stores, a lost layout as LDS traffic, a lost rounding option as v_rsq."""
    found = compiled[arch][heads]
    assert found["spills"] == 0
    assert found["instructions_a_row"] <= 90
    assert found["stores_under_8_bytes"] == 0
    assert found["approximate_roots"] == 0
    # IEEE division and square root are made of seven; contracting the law's own products would make it sixteen.
    assert found["fused_products"] <= 8
