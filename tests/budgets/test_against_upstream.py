"""How many instructions SGLang's own Triton writer executes for the same rows, in the same interpreter and run.

SGLang launches it with four warps (Triton's default), of which each replicates the row; one warp is the better setting,
and is compared with as well.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import real_triton
from tests.amdgcn.chip import CHIPS
from tests.amdgcn.launch import Kernel
from tests.parity import emulated

from .workload import rows_to_write

COMPILE = Path(__file__).with_name("compile_upstream.py")
INSIDE_SGLANG = Path("kernels/ops/speculative/dspark/fused_kv_write.py")
# Where the file is, for an environment without SGLang.
VARIABLE = "DSPARK_UPSTREAM_WRITER"
TIMES_FEWER = {(1, 4): 8, (4, 4): 5, (1, 1): 2, (4, 1): 2}  # by heads and upstream's warps


def upstream_file() -> Path | None:
    if asked := os.environ.get(VARIABLE):
        return Path(asked)
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((Path(folder) / INSIDE_SGLANG for folder in folders if (Path(folder) / INSIDE_SGLANG).exists()), None)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory):
    """What `compile_upstream.py` answers, or the reason why there is nothing."""
    path = upstream_file()
    if path is None:
        return f"no SGLang with {INSIDE_SGLANG} is installed, and {VARIABLE} names no file"
    environment = {name: value for name, value in os.environ.items() if name not in real_triton.KEPT_OUT}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    if not real_triton.INSTALLED:
        return "Triton is not installed"
    run = subprocess.run([sys.executable, str(COMPILE), str(path)], env=environment, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
    return pickle.loads(run.stdout)


def upstream_writes(compiled, arch: str, heads: int, warps: int):
    """Its counters for some tokens, and a check that it was launched as it should be: its K and V are right."""
    variant = compiled["kernels"][arch, heads, warps]
    given, rows = rows_to_write(heads, 4)
    expected, _ = rows_to_write(heads, 4)
    emulated.write(expected, CHIPS[arch])

    strides = [(k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0)) for k, v in
               zip(given.tables.k_pools, given.tables.v_pools, strict=True)]  # fmt: skip
    meta = torch.tensor(strides)
    memory = emulated.visible_memory(given)
    memory.add("meta", emulated.storage_bytes(meta))
    arguments = (
        given.kv,
        meta,
        given.tables.norm_multipliers,
        given.tables.cos_sin,
        given.positions,
        given.slots,
        given.slots,
    )
    packed = struct.pack("<9Q", *(tensor.data_ptr() for tensor in arguments), 0, 0)
    kernel = Kernel(variant["image"], variant["name"], CHIPS[arch])
    counters = kernel.launch((4, 5), (64 * warps,), packed, memory, lds_bytes=variant["lds_bytes"])

    for index, (found, ours) in enumerate(zip(given.storages, expected.storages, strict=True)):
        differing = int((found.view(torch.int16) != ours.view(torch.int16)).sum())
        # Its K has fused products; its V is a copy.
        assert differing <= (rows if index % 2 == 0 else 0), (index, differing)
    return counters, rows


@pytest.mark.parametrize(("heads", "warps"), TIMES_FEWER)
@pytest.mark.parametrize("arch", CHIPS)
def test_executes_far_fewer_instructions(upstream, arch, heads, warps, figure, cannot_check):
    if isinstance(upstream, str):
        cannot_check(upstream)
    if reason := emulated.missing(arch):
        cannot_check(reason)
    theirs, their_rows = upstream_writes(upstream, arch, heads, warps)
    given, our_rows = rows_to_write(heads, 16 // heads)
    ours = emulated.write(given, CHIPS[arch]).counters
    they, we = theirs.executed / their_rows, ours.executed / our_rows
    figure(
        f"{arch} bf16 H={heads}, SGLang's writer with {warps} warps (Triton {upstream['triton']})",
        f"{they:.1f} instructions a row, {they / we:.1f} times ours, {theirs.round_trips} round trips, "
        f"{theirs.kinds['barrier'] // theirs.waves} barriers",
    )
    assert they / we >= TIMES_FEWER[heads, warps]
