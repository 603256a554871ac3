"""gfx942 and gfx950 code beside the same source compiled for the host: bit for bit, whatever a chip is free to do.

`test_context_kv.py` holds both to the law; here K is compared without a bound.
"""

from __future__ import annotations

import dataclasses
import struct
from functools import cache

import numpy as np
import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import gpu_writer
from sglang_dspark.ops.context_kv.native_arguments import Layer
from sglang_dspark.ops.native import code
from tests.amdgcn import toolchain as llvm
from tests.amdgcn.chip import CHIPS, GFX942, Chip
from tests.amdgcn.launch import Kernel
from tests.amdgcn.memory import Memory, MemoryFault

from . import emulated
from .cases import CASES, Case, problem
from .executors import NO_COMPILER, native_gpu

pytestmark = pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)
COVERED = [case for case in CASES if native_gpu(case) and not case.breaks_contract]
# Cases in which a chip's freedom could show: roots of all kinds, and what rounds to zero in fp8.
ROOTS = ("many_tokens", "eps_matters", "subnormal", "not_finite", "interleaved")
SENSITIVE = [case for case in COVERED if case.name in ROOTS or case.name.startswith("fp8_fnuz")]
FREEDOMS = {
    "a unit low": {"approximation_ulps": -1},
    "a unit high": {"approximation_ulps": 1},
    "mixed units": {"approximation_seed": 1},
    "fnuz zero": {"fnuz_negative_zero": 0},
}
chips = pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)


def needs(chip: Chip) -> None:
    if reason := emulated.missing(chip.name):
        pytest.skip(f"context_kv/hip/{chip.name}-emulated: {reason}")


@cache
def on_host(case: Case) -> list[torch.Tensor]:
    given = problem(case)
    context_kv.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "host").run(*given.rows())
    return list(given.storages)


def check_same_bits(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Every byte, but that a NaN may have any payload: hardware and host make different ones."""
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        # Padding and slots that nobody writes hold NaNs too, with payloads that must stay: `check_rest` sees to those.
        differ = (emulated.words(one) != emulated.words(other)) & ~(one.float().isnan() & other.float().isnan())
        assert not differ.any(), f"{int(differ.sum())} differ in pool {index}, first at {differ.nonzero()[0].tolist()}"


@chips
@pytest.mark.parametrize("case", COVERED, ids=lambda case: case.name)
def test_same_bits_as_on_the_host(case, chip):
    needs(chip)
    check_same_bits(emulated.executor(chip)(case), on_host(case))


@chips
@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("case", SENSITIVE, ids=lambda case: case.name)
def test_whatever_the_chip_is_free_to_do(case, freedom, chip):
    """Approximations that are off by a unit, and fnuz's zero: the bytes stay, so two chips agree."""
    needs(chip)
    given = problem(case)
    emulated.write(given, dataclasses.replace(chip, **FREEDOMS[freedom]))
    check_same_bits(list(given.storages), on_host(case))


@chips
@pytest.mark.parametrize("units", [*range(-1, 2), "mixed"])
def test_roots_of_all_sizes(units, chip):
    """The kernel refines its root and reciprocal itself: mean squares from 2^-60 to 2^60, against the host's IEEE."""
    needs(chip)
    off = {"approximation_seed": 3} if units == "mixed" else {"approximation_ulps": units}
    case = dataclasses.replace(next(case for case in CASES if case.name == "many_tokens"), eps=2.0**-60)
    pools = []
    for run in (
        lambda given: emulated.write(given, dataclasses.replace(chip, **off)),
        lambda given: context_kv.choose(
            platforms.describe("cpu", "cpu"), given.spec, given.tables, "host").run(*given.rows()),
    ):  # fmt: skip
        given = problem(case)
        given.kv.mul_(torch.exp2(torch.arange(case.tokens).remainder(61) - 30.0)[:, None, None, None, None])
        run(given)
        pools.append(list(given.storages))
    check_same_bits(*pools)


ROOTS_TEXT = """
#include "{folder}/numbers.h"
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64))) void roots(float* x) {{
  const uint32_t i = dspark::block_x() * 64 + dspark::thread_index();
  x[i] = dspark::inverse_root(x[i]);
}}
"""


@chips
@pytest.mark.parametrize(
    "freedom", [{"approximation_ulps": units} for units in (-1, 0, 1)] + [{"approximation_seed": 5}]
)
def test_inverse_root_alone(freedom, chip):
    """Before bf16 hides a unit: 4,096 values, every mantissa's end among them, against two IEEE steps."""
    needs(chip)
    image = llvm.compile_text(ROOTS_TEXT.format(folder=code.SOURCES.resolve()), chip.name)
    bits = np.arange(4096, dtype=np.uint32) * np.uint32(104_729) + np.uint32(0x30000000)
    bits[:256] = (bits[:256] & np.uint32(0xFF800000)) - np.arange(256, dtype=np.uint32) % np.uint32(4)
    given = bits.view(np.float32)
    expected = np.float32(1) / np.sqrt(given)
    memory, found = Memory(), given.copy()
    arguments = struct.pack("<Q", memory.add("x", found, writable=True))
    Kernel(image, "roots", dataclasses.replace(chip, **freedom)).launch((64,), (64,), arguments, memory)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@chips
def test_firmware_that_does_not_preload_arguments(chip):
    """The kernel then starts 256 bytes earlier and loads them itself: one round trip more, the same bytes."""
    needs(chip)
    case = next(case for case in CASES if case.name == "uneven_commits")
    given = problem(case)
    slow = emulated.write(given, chip, preload=False)
    fast = emulated.write(problem(case), chip)
    check_same_bits(list(given.storages), on_host(case))
    assert slow.counters.round_trips == fast.counters.round_trips + 1


@chips
def test_four_thousand_tokens(chip):
    """A grid of 1,024 waves; every thirteenth token has a slot, since the pools are small."""
    needs(chip)
    slots = tuple(token // 13 if token % 13 == 0 else -1 for token in range(4096))
    case = Case("four_thousand_tokens", "an index computed too small", tokens=4096, layers=1, heads=1, slots=slots)
    given = problem(case)
    assert emulated.write(given, chip).grids == [(1024, 1, 1)]
    check_same_bits(list(given.storages), on_host(case))


@chips
def test_one_launch_for_all_layers(chip):
    needs(chip)
    case = next(case for case in CASES if case.name == "five_layers")
    assert emulated.write(problem(case), chip).grids == [(2, 5, 1)]  # six rows a layer, four to a wave
    nothing = next(case for case in CASES if case.name == "no_tokens")
    assert emulated.write(problem(nothing), chip).grids == []


@pytest.mark.parametrize("hidden", ["V pool of layer 1", "K pool of layer 0", "kv", "cos and sin", "positions"])
def test_an_access_to_what_was_not_given_faults(hidden):
    """That no case faults means something."""
    needs(GFX942)
    given = problem(next(case for case in CASES if case.name == "plain"))
    memory, seen = Memory(), emulated.visible_memory(given)
    for buffer in seen.buffers:
        if buffer.name != hidden:
            memory.add(buffer.name, buffer.data, buffer.address, buffer.writable)
    driver = emulated.EmulatedDriver(GFX942, memory)
    writer = gpu_writer.bind(
        given.spec, given.tables, emulated.image("gfx942"), driver.opened(), lambda: emulated.STREAM
    )
    emulated.keep_visible(memory, writer.keeps)
    with pytest.raises(MemoryFault, match="outside memory"):
        writer(*given.rows())


FAR_SLOTS, FAR_ROW_BYTES, FAR_TOKEN_BYTES = (3, 40_000, 65_535), 2**18, 5 * 2**28
POOL_BASE, KV_BASE, TABLE_BASE = 0x7000_0000_0000, 0x6000_0000_0000, 0x5000_0000_0000


@chips
def test_pools_past_2_gib(chip):
    """Rows of pools at 10 and 16 GiB, kv past 2 GiB, cos and sin past 2 GiB: an offset of 32 bits, or a signed one.

    Only the rows that are used exist, each a buffer of its own at its address.
    """
    needs(chip)
    case = dataclasses.replace(
        next(case for case in CASES if case.name == "plain"), tokens=3, layers=1, slots=(0, 1, 2), positions=(0, 1, 2)
    )
    near = problem(case)
    context_kv.choose(platforms.describe("cpu", "cpu"), near.spec, near.tables, "host").run(*near.rows())

    given = problem(case)
    driver = emulated.EmulatedDriver(chip, Memory())
    writer = gpu_writer.bind(
        given.spec, given.tables, emulated.image(chip.name), driver.opened(), lambda: emulated.STREAM
    )
    layer = Layer.from_buffer(writer.keeps[1].numpy())
    layer.k_pool, layer.v_pool = POOL_BASE, POOL_BASE + 2**40
    layer.k_row_bytes = layer.v_row_bytes = FAR_ROW_BYTES
    positions, position_bytes = torch.tensor([0, 9, 11]), 2**28
    slots = torch.tensor(FAR_SLOTS)
    arguments = writer.arguments
    arguments.num_slots, arguments.last_position, arguments.cos_sin_row_bytes = 2**16, 2**16, position_bytes
    arguments.cos_sin = TABLE_BASE
    launch = writer.kernel

    def far_launch(grid_x: int, grid_y: int, stream: int) -> None:
        arguments.kv, arguments.kv_token_bytes = KV_BASE, FAR_TOKEN_BYTES
        launch(grid_x, grid_y, stream)

    row = case.heads * case.head_dim
    for token in range(case.tokens):
        for base, storage in ((POOL_BASE, given.storages[0]), (POOL_BASE + 2**40, given.storages[1])):
            there = base + FAR_SLOTS[token] * FAR_ROW_BYTES
            driver.memory.add(
                f"pool row {there:#x}", emulated.storage_bytes(storage).reshape(-1, 2 * row)[token], there, True
            )
        table = emulated.storage_bytes(given.tables.cos_sin).reshape(-1, 4 * case.rotary_dim)
        driver.memory.add(f"position {token}", table[token], TABLE_BASE + int(positions[token]) * position_bytes)
        tokens = emulated.storage_bytes(given.kv).reshape(case.tokens, -1)
        driver.memory.add(f"kv of token {token}", tokens[token], KV_BASE + token * FAR_TOKEN_BYTES)
    for name, tensor in (("positions", positions), ("slots", slots), ("multipliers", given.tables.norm_multipliers)):
        driver.memory.add(name, emulated.storage_bytes(tensor))
    emulated.keep_visible(driver.memory, writer.keeps)

    far = dataclasses.replace(writer, kernel=far_launch)
    far(given.kv, positions, slots)
    check_same_bits(list(given.storages), list(near.storages))
    assert np.array_equal(emulated.storage_bytes(given.storages[1]), emulated.storage_bytes(near.storages[1]))
