"""The stand-in driver, built and opened; see `stand_in_driver.cpp` for what it proves."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from sglang_dspark.ops.native import code, toolchain
from sglang_dspark.ops.native.driver import Api, Driver

STREAM = 0x5EED


class Launch(ctypes.Structure):
    """What the stand-in saw of the last launch."""

    _fields_ = [
        ("kernel", ctypes.c_char * 64),
        *((name, ctypes.c_uint32) for name in ("grid_x", "grid_y", "block_x")),
        ("stream", ctypes.c_void_p),
    ]


@cache
def library() -> ctypes.CDLL:
    """The stand-in as a shared library."""
    source = Path(__file__).with_suffix(".cpp")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "driver.so"
        compiler = toolchain.HOST.compiler()
        subprocess.run([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", str(source), "-o", str(output)], check=True)
        loaded = ctypes.CDLL(str(output))
    loaded.stand_in_last_launch.restype = ctypes.POINTER(Launch)
    return loaded


def open_driver(api: Api) -> Driver:
    return Driver(api, library())


def image(source: str = "context_kv_writer") -> bytes:
    """What stands in for a code object."""
    return str(code.compiled(source, toolchain.HOST, "host")).encode()


def stream() -> int:
    return STREAM


def last_launch() -> Launch:
    return library().stand_in_last_launch().contents
