"""SGLang's own Triton writer in the interpreter: compiled ahead of time from the installed wheel, never copied."""

from __future__ import annotations

import importlib.util
import os
import pickle
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests import real_triton
from tests.amdgcn.chip import CHIPS
from tests.amdgcn.counters import Counters
from tests.amdgcn.launch import Kernel
from tests.parity import emulated

from .workload import rows_to_write

COMPILE = Path(__file__).with_name("compile_upstream.py")
INSIDE_SGLANG = Path("kernels/ops/speculative/dspark/fused_kv_write.py")
# Where the file is, for an environment without SGLang.
VARIABLE = "DSPARK_UPSTREAM_WRITER"
HEADS = (1, 4)
WARPS = (4, 1)  # Triton's default, with which SGLang launches it, and the better setting


def source() -> Path | None:
    """SGLang's file."""
    if asked := os.environ.get(VARIABLE):
        return Path(asked)
    spec = importlib.util.find_spec("sglang")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return next((Path(folder) / INSIDE_SGLANG for folder in folders if (Path(folder) / INSIDE_SGLANG).exists()), None)


def missing() -> str:
    """Why it cannot be compiled here, empty where it can."""
    if source() is None:
        return f"no SGLang with {INSIDE_SGLANG} is installed, and {VARIABLE} names no file"
    return "" if real_triton.INSTALLED else "Triton is not installed"


def compiled() -> dict[str, Any]:
    """What `compile_upstream.py` answers."""
    environment = {name: value for name, value in os.environ.items() if name not in real_triton.KEPT_OUT}
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    with tempfile.TemporaryDirectory() as folder:
        environment["TRITON_CACHE_DIR"] = folder
        run = subprocess.run([sys.executable, str(COMPILE), str(source())], env=environment, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
    answer: dict[str, Any] = pickle.loads(run.stdout)
    return answer


def written(answer: dict[str, Any], arch: str, heads: int, warps: int) -> tuple[Counters, int]:
    """Its counters for some rows, and how many; asserts that it was launched as it should be: its K and V are right."""
    variant = answer["kernels"][arch, heads, warps]
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
