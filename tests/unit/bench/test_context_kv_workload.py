"""The shapes, the bytes that must move, and the agreement of all writers on the timed inputs."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import context_kv_workload as workload
from sglang_dspark.bench import presets, roofline, upstream
from sglang_dspark.bench.context_kv_workload import Shape
from sglang_dspark.bench.upstream import UpstreamMissing

CPU = platforms.describe("cpu", "cpu")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
TP4, TP1 = presets.PRESETS["m3-tp4"], presets.PRESETS["m3-tp1"]


def no_sglang(variant="sglang"):
    raise UpstreamMissing("SGLang is not installed")


def work(shape: Shape) -> workload.Work:
    return workload.build(shape, "cpu", num_slots=256, num_positions=64)


def test_presets_are_one_ranks_part():
    heads = {name: (preset.query_heads, preset.kv_heads) for name, preset in presets.PRESETS.items()
             if preset.layers == presets.RELEASED_LAYERS}  # fmt: skip
    assert heads == {"m3-tp1": (64, 4), "m3-tp2": (32, 2), "m3-tp4": (16, 1), "m3-tp8": (8, 1)}


@pytest.mark.parametrize(
    ("preset", "tokens", "dtype", "moved"),
    [
        # kv 2 * 5 * 128 * 2 B, cos and sin 256 B, position and slot 16 B, the same kv again; multipliers 2560 B
        (TP4, 1, BF16, 2560 + 256 + 16 + 2560 + 2560),
        (TP4, 1, FP8, 2560 + 256 + 16 + 1280 + 2560),
        (TP1, 8192, BF16, 8192 * (10240 + 256 + 16 + 10240) + 2560),
    ],
)
def test_moved_bytes(preset, tokens, dtype, moved):
    shape = Shape(preset, tokens, dtype)
    assert shape.moved_bytes() == moved
    assert 0 <= moved - 2 * workload.copy_bytes(shape) < 2 * workload.COPY_ACCESS_BYTES


def test_moved_bytes_are_those_of_the_tensors():
    """Counted from the tensors of a call, so that a change of the inputs cannot leave the formula behind."""
    shape = Shape(TP1, 8, FP8)
    given = work(shape)
    rows, tables = given.sets[0], given.tables
    read = rows.kv.nbytes + rows.positions.nbytes + rows.slots.nbytes + tables.norm_multipliers.nbytes
    read += tables.cos_sin[rows.positions].nbytes
    written = sum(pool[rows.slots.cpu()].nbytes for pool in (*tables.k_pools, *tables.v_pools))
    assert shape.moved_bytes() == read + written


@pytest.mark.parametrize(("chip", "floor"), [("MI300X", 32), ("MI355X", 21), ("H200", 35)])
def test_floors_are_those_of_the_design(chip, floor):
    of_chip = next(one for one in roofline.CHIPS if one.name == chip)
    assert roofline.floor_us(Shape(TP1, 8192, BF16).moved_bytes(), of_chip) == pytest.approx(floor, abs=0.6)


def test_input_sets_share_no_slot():
    """Shared slots would keep pool rows in a cache from one call to the next."""
    given = work(Shape(TP4, 48, BF16))
    slots = torch.cat([rows.slots for rows in given.sets])
    assert slots.unique().numel() == workload.INPUT_SETS * 48


def test_every_token_count_has_slots_enough():
    assert max(presets.TOKENS) * workload.INPUT_SETS <= workload.SLOTS


def test_the_writers_of_a_platform():
    calls, refused = workload.writers(CPU, work(Shape(TP4, 8, BF16)), no_sglang)
    assert "torch" in calls and upstream.SGLANG not in calls
    assert refused[upstream.SGLANG] == "SGLang is not installed"


def test_refusals_are_short():
    calls, refused = workload.writers(CPU, work(Shape(TP4, 8, FP8)), no_sglang)
    assert "torch" not in calls
    assert refused["torch"] == "fp8 pool (torch.float8_e4m3fn) is not covered"


def wrong_v(given):
    def call(kv, positions, slots):
        workload.writers(CPU, given, no_sglang)[0]["torch"](kv, positions, slots)
        given.tables.v_pools[2][slots[0], 0, 7] += 1

    return call


def wrong_k(elements: int):
    def of(given):
        def call(kv, positions, slots):
            workload.writers(CPU, given, no_sglang)[0]["torch"](kv, positions, slots)
            given.tables.k_pools[0][slots[0], 0, :elements] += 1

        return call

    return of


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        ("ours", wrong_v, "V differs"),
        ("ours", wrong_k(4), None),
        ("ours", wrong_k(100), "100 of 5120 K elements differ, at most 5 may"),
        (upstream.SGLANG, wrong_k(50), None),
        (upstream.SGLANG, wrong_k(100), "100 of 5120 K elements differ, at most 51 may"),
        ("writes nothing", lambda given: lambda *rows: None, "V differs"),
    ],
)
def test_disagreement(name, broken, reason):
    given = work(Shape(TP4, 8, BF16))
    right = workload.writers(CPU, given, no_sglang)[0]["torch"]
    assert workload.disagreement(given, {"first": right, name: broken(given)}) == ({name: reason} if reason else {})
