"""gfx942 and gfx950 code beside the same source compiled for the host: bit for bit, whatever a chip is free to do."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.qk_norm_rope import gpu_kernel
from tests.amdgcn.chip import CHIPS, GFX942, Chip
from tests.amdgcn.memory import Memory, MemoryFault
from tests.parity.emulated import STREAM, EmulatedDriver

from . import emulated
from .cases import CASES, Case, problem
from .executors import NO_COMPILER, native_gpu

pytestmark = pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)
COVERED = [case for case in CASES if native_gpu(case) and not case.breaks_contract]
SENSITIVE = [case for case in COVERED if case.name in ("eps_matters", "subnormal", "not_finite", "fp8_fnuz_query")]
FREEDOMS = {
    "a unit low": {"approximation_ulps": -1},
    "a unit high": {"approximation_ulps": 1},
    "fnuz zero": {"fnuz_negative_zero": 0},
}
chips = pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)


def needs(chip: Chip) -> None:
    if reason := emulated.missing(chip.name):
        pytest.skip(f"qk_norm_rope/hip/{chip.name}-emulated: {reason}")


@cache
def on_host(case: Case) -> dict[str, torch.Tensor]:
    given = problem(case)
    qk_norm_rope.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "host").run(*given.rows())
    return given.storages


def check_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Every byte, but that a NaN may have any payload: hardware and host make different ones."""
    for name, one in found.items():
        other = expected[name]
        words = torch.uint8 if one.itemsize == 1 else torch.int16
        differ = (one.view(words) != other.view(words)) & ~(one.float().isnan() & other.float().isnan())
        assert not differ.any(), f"{int(differ.sum())} differ in {name}, first at {differ.nonzero()[0].tolist()}"


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
    emulated.run(given, dataclasses.replace(chip, **FREEDOMS[freedom]))
    check_same_bits(given.storages, on_host(case))


@chips
def test_firmware_that_does_not_preload_arguments(chip):
    """The kernel then starts 256 bytes earlier and loads them itself: one round trip more, the same bytes."""
    needs(chip)
    case = next(case for case in CASES if case.name == "holes")
    given = problem(case)
    slow, fast = emulated.run(given, chip, preload=False), emulated.run(problem(case), chip)
    check_same_bits(given.storages, on_host(case))
    assert slow.counters.round_trips == fast.counters.round_trips + 1


@chips
def test_one_launch(chip):
    needs(chip)
    case = next(case for case in CASES if case.name == "plain")
    # Seven tokens of two K and V rows and four Q rows, four rows a block.
    assert emulated.run(problem(case), chip).grids == [(4 + 7, 1, 1)]
    nothing = next(case for case in CASES if case.name == "no_tokens")
    assert emulated.run(problem(nothing), chip).grids == []


@pytest.mark.parametrize("hidden", ["qkv", "k", "v", "positions", "slots", "cos and sin", "Q's multipliers"])
def test_an_access_to_what_was_not_given_faults(hidden):
    """That no case faults means something."""
    needs(GFX942)
    given = problem(next(case for case in CASES if case.name == "plain"))
    memory = Memory()
    for buffer in emulated.visible_memory(given).buffers:
        if buffer.name != hidden:
            memory.add(buffer.name, buffer.data, buffer.address, buffer.writable)
    opened = EmulatedDriver(GFX942, memory).opened()
    op = gpu_kernel.bind(given.spec, given.tables, emulated.image("gfx942"), opened, lambda: STREAM)
    with pytest.raises(MemoryFault, match="outside memory"):
        op(*given.rows())


@pytest.mark.parametrize("unread", ["slots", "k", "v"])
def test_without_slots_nothing_of_the_pools_is_touched(unread):
    needs(GFX942)
    given = problem(next(case for case in CASES if case.name == "no_slots"))
    memory = Memory()
    for buffer in emulated.visible_memory(given).buffers:
        if buffer.name != unread:
            memory.add(buffer.name, buffer.data, buffer.address, buffer.writable)
    opened = EmulatedDriver(GFX942, memory).opened()
    op = gpu_kernel.bind(given.spec, given.tables, emulated.image("gfx942"), opened, lambda: STREAM)
    op(*given.rows())
    check_same_bits(given.storages, on_host(next(case for case in CASES if case.name == "no_slots")))
