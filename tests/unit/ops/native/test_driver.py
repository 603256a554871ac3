"""Loading, argument packing and launch geometry, through a driver that runs the host's kernels (`stand_in_driver`)."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from sglang_dspark.ops.context_kv import gpu_writer, native_arguments
from sglang_dspark.ops.native import driver

from ..context_kv.native_support import SPEC, needs_compiler, tables
from . import stand_in_driver

APIS = pytest.mark.parametrize("api", [driver.HIP, driver.CUDA], ids=["hip", "cuda"])


def bound(api, spec=SPEC, given=None):
    opened, image = stand_in_driver.open_driver(api), stand_in_driver.image()
    return gpu_writer.bind(spec, given or tables(), image, opened, stand_in_driver.stream)


def rows(tokens: int):
    kv = torch.ones(tokens, 2, 2, 1, 128, dtype=torch.bfloat16)
    return kv, torch.zeros(tokens, dtype=torch.int64), torch.zeros(tokens, dtype=torch.int64) - 1


@needs_compiler
@APIS
@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_geometry(api, tokens, blocks):
    """64 threads, sixteen a row: four rows a block, a layer in the grid's second dimension, the caller's stream."""
    bound(api)(*rows(tokens))
    launch = stand_in_driver.last_launch()
    assert (launch.grid_x, launch.grid_y, launch.block_x) == (blocks, 2, 64)
    assert launch.stream == stand_in_driver.STREAM
    assert launch.kernel == b"context_kv_128_neox_float32_bf16"


@needs_compiler
@APIS
def test_no_rows_no_launch(api):
    """Fault 20. A grid of no blocks is an error of the driver's."""
    run = bound(api)
    run(*rows(8))
    run(*rows(0))
    assert stand_in_driver.last_launch().grid_x == 2


@needs_compiler
@APIS
def test_the_image_lives_as_long_as_the_kernel(api):
    """The caller drops its bytes; a driver that reads them at a first launch would find others in their place."""
    image = stand_in_driver.image()
    kernel = (
        stand_in_driver.open_driver(api)
        .load(image)
        .kernel("context_kv_128_neox_float32_bf16", 64, native_arguments.Arguments())
    )
    assert kernel._module.image is image


@needs_compiler
@APIS
def test_failures_say_which_call_failed(api):
    opened = stand_in_driver.open_driver(api)
    with pytest.raises(driver.DriverError, match=f"{api.load} failed with status 1"):
        opened.load(b"/no/such/file")
    with pytest.raises(driver.DriverError, match=f"{api.get} failed with status 500"):
        opened.load(stand_in_driver.image()).kernel("no_such_kernel", 64, native_arguments.Arguments())


@needs_compiler
def test_a_failed_launch_names_the_kernel():
    run = bound(replace(driver.HIP, end=7))
    with pytest.raises(driver.DriverError, match="launching context_kv_128_neox_float32_bf16 failed with status 1"):
        run(*rows(1))


def test_no_driver_library():
    api = replace(driver.CUDA, libraries=("libno-such-driver.so.1",))
    with pytest.raises(driver.DriverError, match="no driver library: tried libno-such-driver.so.1"):
        driver.open_driver(api)


def test_the_copy_that_is_loaded_is_taken():
    """torch's ROCm wheels bring their own libamdhip64; another copy would have no context."""
    loaded = driver._loaded("libc.so.6")
    assert loaded and all("libc.so" in path for path in loaded)


@needs_compiler
def test_unaligned_kv_raises():
    kv, positions, slots = rows(3)
    shifted = torch.ones(3, kv[0].numel() + 1, dtype=torch.bfloat16)[:, 1:].unflatten(1, kv.shape[1:])
    with pytest.raises(ValueError, match="kv: expected tokens at multiples of 16 bytes"):
        bound(driver.HIP)(shifted, positions, slots)


@needs_compiler
@APIS
def test_no_code_object_is_ever_unloaded(api):
    """Fault 7: a garbage collection that unloads a module takes its kernel out of the graphs that captured it."""
    called = set()

    class Recording:
        def __getattr__(self, name):
            called.add(name)
            return getattr(stand_in_driver.library(), name)

    run = gpu_writer.bind(
        SPEC, tables(), stand_in_driver.image(), driver.Driver(api, Recording()), stand_in_driver.stream
    )
    run(*rows(4))
    del run
    gc.collect()
    assert called == {api.load, api.get, api.launch}
