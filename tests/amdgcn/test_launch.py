"""Whole kernels: what a compiler made, started as the descriptor says, against numpy."""

from __future__ import annotations

import dataclasses
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest

from sglang_dspark.bench.kernels.code_object import CodeObject
from sglang_dspark.bench.kernels.messagepack import unpack

from . import toolchain
from .chip import CHIPS
from .launch import Kernel
from .memory import Memory, MemoryFault
from .registers import UnknownInstruction
from .snippets import random_floats, same_floats

SOURCE = Path(__file__).with_name("sample_kernels.hip")
needs_llvm = pytest.mark.skipif(bool(toolchain.MISSING), reason=toolchain.MISSING)
pytestmark = needs_llvm


@pytest.fixture(scope="module", params=CHIPS.values(), ids=lambda chip: chip.name)
def compiled(request):
    """(chip, code object)"""
    return request.param, toolchain.compile_hip(SOURCE, request.param.name)


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("ulps", [-1, 0, 1])
def test_division_and_root_are_exact(compiled, preload, ulps):
    """With arguments in registers and from memory, and whatever the chip's approximations are off by."""
    chip, image = compiled
    kernel = Kernel(image, "ratio_of_roots", dataclasses.replace(chip, approximation_ulps=ulps))
    assert kernel.descriptor.preload_dwords
    a, b = (np.concatenate([random_floats(seed + i) for i in range(5)]) for seed in (0, 9))
    b[b.view(np.uint32) & np.uint32(0x7FFFFF) == 0x7FFFFF] = 3  # see test_division_sequence_is_exact
    result = np.full(a.size, 7, np.float32)
    memory = Memory()
    addresses = [memory.add(name, array, writable=name == "result") for name, array in
                 (("a", a), ("b", b), ("result", result))]  # fmt: skip
    count = a.size - 3
    counters = kernel.launch((5,), (64,), struct.pack("<3QI", *addresses, count), memory, preload)
    with np.errstate(all="ignore"):
        assert same_floats(result[:count], np.sqrt(a[:count]) / b[:count])
    assert result[count:].tolist() == [7] * 3
    assert counters.waves == 5
    assert counters.round_trips == (1 if preload else 2)
    assert counters.accesses["store", "result", 4] == 5
    assert counters.bytes == {"load": 8 * count, "store": 4 * count}


def test_workgroups_of_several_waves_meet_at_barriers(compiled):
    chip, image = compiled
    values = np.arange(5 * 160, dtype=np.int32).reshape(5, 160) * 7919 % 1000
    sums = np.zeros_like(values)
    memory = Memory()
    arguments = struct.pack("<2QI", memory.add("values", values), memory.add("sums", sums, writable=True), 5)
    counters = Kernel(image, "column_sums", chip).launch((2,), (160,), arguments, memory)
    assert np.array_equal(sums, values.cumsum(axis=1))
    assert counters.waves == 6 and counters.kinds["barrier"] == 2 * 3 * 5


def test_ids_in_three_dimensions_and_constants(compiled):
    chip, image = compiled
    result = np.zeros(12 * 64, np.uint32)
    memory = Memory()
    arguments = struct.pack("<Q", memory.add("result", result, writable=True))
    Kernel(image, "places", chip).launch((3, 2, 2), (16, 4), arguments, memory)
    primes = (2, 3, 5, 7, 11, 13, 17, 19)
    places = itertools.product(range(12), range(4), range(16))
    expected = [group * 1000000 + y * 10000 + x * 100 + primes[(x + y) & 7] for group, y, x in places]
    assert result.tolist() == expected


def test_an_access_out_of_bounds_stops_the_launch(compiled):
    chip, image = compiled
    a, result = np.ones(64, np.float32), np.ones(64, np.float32)
    memory = Memory()
    arguments = struct.pack("<3QI", memory.add("a", a), memory.add("b", a[:60].copy()), memory.add("r", result), 64)
    with pytest.raises(MemoryFault, match="global_load_dword .* outside memory"):
        Kernel(image, "ratio_of_roots", chip).launch((1,), (64,), arguments, memory)


def test_arguments_of_another_size_are_refused(compiled):
    chip, image = compiled
    with pytest.raises(ValueError, match="takes 28 bytes of arguments, found 8"):
        Kernel(image, "ratio_of_roots", chip).launch((1,), (64,), bytes(8), Memory())


@pytest.mark.parametrize(("flag", "mode", "result"), [("-fno-gpu-flush-denormals-to-zero", 3, 2.0**-129),
                                                      ("-fgpu-flush-denormals-to-zero", 0, 0.0)])  # fmt: skip
def test_a_kernel_brings_its_treatment_of_denormals(flag, mode, result):
    text = 'extern "C" __attribute__((global)) void twice(float* x) { *x = *x + *x; }'
    kernel = Kernel(toolchain.compile_text(text, "gfx942", flag), "twice", CHIPS["gfx942"])
    assert kernel.descriptor.denormals_32 == mode
    value, memory = np.full(1, 2.0**-130, np.float32), Memory()
    kernel.launch((1,), (1,), struct.pack("<Q", memory.add("x", value, writable=True)), memory)
    assert value[0] == result


def test_unknown_code_is_refused_before_it_runs():
    text = toolchain.compile_text('#define K extern "C" __attribute__((global)) void\n'
                                  "K f(float* x) { *x = __builtin_amdgcn_exp2f(*x); }", "gfx942")  # fmt: skip
    with pytest.raises(UnknownInstruction, match="v_exp_f32 is not emulated for gfx942"):
        Kernel(text, "f", CHIPS["gfx942"])


def test_metadata_and_descriptor(compiled):
    """Against the numbers that the compiler was told, or that the assembler prints."""
    _, image = compiled
    code_object = CodeObject(image)
    assert set(code_object.metadata) == {"ratio_of_roots", "column_sums", "places"}
    sums, places = code_object.descriptor("column_sums"), code_object.descriptor("places")
    assert (sums.lds_bytes, sums.scratch_bytes, sums.denormals_32, sums.rounding_32) == (640, 0, 3, 0)
    assert places.workgroup_ids == (True, True, True) and places.workitem_ids >= 1
    assert code_object.metadata["column_sums"][".max_flat_workgroup_size"] == 160
    assert [one[".offset"] for one in code_object.metadata["ratio_of_roots"][".args"]][:4] == [0, 8, 16, 24]


def test_messagepack():
    assert unpack(b"\x82\xa1a\x93\x01\xff\xcd\x01\x00\xa1b\x82\xc3\xc0\xd9\x02hi\xd1\xff\x00") == {
        "a": [1, -1, 256],
        "b": {True: None, "hi": -256},
    }
