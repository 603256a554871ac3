"""The ops as the benchmark sees them: shapes, the bytes that must move, what is written, and by whom."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets, roofline
from sglang_dspark.bench.kernels import agreement
from sglang_dspark.bench.kernels.context_kv import BENCH as CONTEXT_KV
from sglang_dspark.bench.kernels.op import COPY_ACCESS_BYTES, INPUT_SETS, SLOTS, Shape, copy_bytes
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH as QK_NORM_ROPE

CPU = platforms.describe("cpu", "cpu")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
TP4, TP1 = presets.PRESETS["m3-tp4"], presets.PRESETS["m3-tp1"]
ops = pytest.mark.parametrize("bench", [CONTEXT_KV, QK_NORM_ROPE], ids=lambda bench: bench.name)


def work(bench, shape: Shape):
    return bench.build(shape, "cpu", num_slots=256, num_positions=64)


def test_presets_are_one_ranks_part():
    released = [preset for preset in presets.PRESETS.values() if preset.layers == presets.RELEASED_LAYERS]
    heads = {preset.name: (preset.query_heads, preset.kv_heads) for preset in released}
    assert heads == {"m3-tp1": (64, 4), "m3-tp2": (32, 2), "m3-tp4": (16, 1), "m3-tp8": (8, 1)}
    assert presets.PRESETS["m3-tp4-depth3"].layers == 3 and presets.PRESETS["m3-tp4-depth1"].layers == 1


@pytest.mark.parametrize(
    ("bench", "preset", "tokens", "dtype", "moved"),
    [
        # kv 2 * 5 * 128 * 2 B, cos and sin 256 B, position and slot 16 B, the same kv again; multipliers 2560 B
        (CONTEXT_KV, TP4, 1, BF16, 2560 + 256 + 16 + 2560 + 2560),
        (CONTEXT_KV, TP4, 1, FP8, 2560 + 256 + 16 + 1280 + 2560),
        (CONTEXT_KV, TP1, 8192, BF16, 8192 * (10240 + 256 + 16 + 10240) + 2560),
        # 18 heads of 256 B, cos and sin, position and slot; 17 heads back, 2 to the pool; two multipliers
        (QK_NORM_ROPE, TP4, 1, BF16, 18 * 256 + 256 + 16 + 17 * 256 + 2 * 256 + 1024),
        (QK_NORM_ROPE, TP4, 8, FP8, 8 * (18 * 256 + 256 + 16 + 17 * 256 + 2 * 128) + 1024),
    ],
)
def test_moved_bytes(bench, preset, tokens, dtype, moved):
    shape = Shape(preset, tokens, dtype)
    assert bench.moved_bytes(shape) == moved
    assert 0 <= moved - 2 * copy_bytes(moved) < 2 * COPY_ACCESS_BYTES


def test_moved_bytes_of_the_writer_are_those_of_its_tensors():
    """Counted from the tensors of a call, so that a change of the inputs cannot leave the formula behind."""
    given = work(CONTEXT_KV, Shape(TP1, 8, FP8))
    (kv, positions, slots), tables = given.sets[0].rows, given.tables
    read = kv.nbytes + positions.nbytes + slots.nbytes + tables.norm_multipliers.nbytes
    read += tables.cos_sin[positions].nbytes
    written = sum(pool[slots].nbytes for pool in (*tables.k_pools, *tables.v_pools))
    assert CONTEXT_KV.moved_bytes(given.shape) == read + written


def test_moved_bytes_of_the_query_op_are_those_of_its_tensors():
    given = work(QK_NORM_ROPE, Shape(TP1, 8, FP8))
    (qkv, positions, slots), tables = given.sets[0].rows, given.tables
    read = qkv.nbytes + positions.nbytes + slots.nbytes + tables.cos_sin[positions].nbytes
    read += tables.q_norm_multipliers.nbytes + tables.k_norm_multipliers.nbytes
    q, k, _, k_pool, v_pool = QK_NORM_ROPE.written(given, given.sets[0])
    written = q.tensor.nbytes + k.tensor.nbytes + k_pool.tensor[slots].nbytes + v_pool.tensor[slots].nbytes
    assert QK_NORM_ROPE.moved_bytes(given.shape) == read + written


@pytest.mark.parametrize(("chip", "floor"), [("MI300X", 32), ("MI355X", 21), ("H200", 35)])
def test_floors_are_those_of_the_design(chip, floor):
    of_chip = next(one for one in roofline.CHIPS if one.name == chip)
    moved = CONTEXT_KV.moved_bytes(Shape(TP1, 8192, BF16))
    assert roofline.floor_us(moved, of_chip) == pytest.approx(floor, abs=0.6)


@ops
def test_input_sets_share_no_slot_and_leave_slot_0(bench):
    """Shared slots would keep pool rows in a cache from one call to the next; SGLang's store skips slot 0."""
    given = work(bench, Shape(TP4, 48, BF16))
    slots = torch.cat([inputs.slots for inputs in given.sets])
    assert slots.unique().numel() == INPUT_SETS * 48 and slots.min() >= 1


def test_every_token_count_has_slots_enough():
    assert max(presets.TOKENS) * INPUT_SETS <= SLOTS - 1


@ops
@pytest.mark.parametrize("dtype", [BF16, FP8], ids=["bf16", "fp8"])
def test_nothing_saturates(bench, dtype):
    """Where a value saturates, a missing clamp would show as NaN and the law as the largest value."""
    given = work(bench, Shape(TP4, 48, dtype))
    bench.reference(given.spec, given.tables, *given.sets[0].rows)
    for one in bench.written(given, given.sets[0]):
        values = one.tensor.float()
        assert values.isfinite().all() and values.abs().max() < torch.finfo(one.tensor.dtype).max


@ops
def test_what_a_call_writes_is_all_that_changes(bench):
    given = work(bench, Shape(TP4, 7, BF16))
    inputs = given.sets[0]
    before = [row.clone() for row in inputs.rows]
    bench.bind(CPU, given, "torch")(*inputs.rows)
    inputs.restore()
    assert all(torch.equal(row, old) for row, old in zip(inputs.rows, before, strict=True))


@ops
def test_the_writers_of_a_platform(bench):
    calls, refused = agreement.writers(bench, CPU, work(bench, Shape(TP4, 8, BF16)), CPU.backends(bench.name))
    assert {"torch", "unfused"} <= set(calls) and "sglang" not in calls
    assert "run" in refused["sglang"] and "GPU only" in refused["sglang"]


def test_refusals_are_short():
    calls, refused = agreement.writers(CONTEXT_KV, CPU, work(CONTEXT_KV, Shape(TP4, 8, FP8)), ["torch"])
    assert "torch" not in calls
    assert refused["torch"] == "fp8 pool (torch.float8_e4m3fn) is not covered"


def wrong_v(right, given):
    def call(kv, positions, slots):
        right(kv, positions, slots)
        given.tables.v_pools[2][slots[0], 0, 7] += 1

    return call


def wrong_k(elements: int):
    def of(right, given):
        def call(kv, positions, slots):
            right(kv, positions, slots)
            given.tables.k_pools[0][slots[0], 0, :elements] += 1

        return call

    return of


@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        ("ours", wrong_v, "V of layer 2 differs"),
        ("ours", wrong_k(4), None),
        ("ours", wrong_k(100), "K of layer 0: 100 of 1024 elements differ, at most 4 may"),
        ("sglang", wrong_k(10), None),
        ("sglang", wrong_k(100), "K of layer 0: 100 of 1024 elements differ, at most 10 may"),
        ("writes nothing", lambda right, given: lambda *rows: None, None),
    ],
)
def test_disagreement(name, broken, reason):
    given = work(CONTEXT_KV, Shape(TP4, 8, BF16))
    right = CONTEXT_KV.bind(CPU, given, "torch")
    found = agreement.disagreement(CONTEXT_KV, given, {"first": right, name: broken(right, given)}, {"sglang": 1e-2})
    if name == "writes nothing":
        assert found[name].startswith("K of layer 0: 1024 of 1024 elements differ")
    else:
        assert found == ({name: reason} if reason else {})


def test_a_query_that_differs_is_found():
    given = work(QK_NORM_ROPE, Shape(TP4, 8, BF16))
    right = QK_NORM_ROPE.bind(CPU, given, "torch")

    def wrong_query(qkv, positions, slots):
        right(qkv, positions, slots)
        qkv[:, :128] *= 2

    found = agreement.disagreement(QK_NORM_ROPE, given, {"first": right, "ours": wrong_query}, {})
    assert found["ours"].startswith("Q in place: ")
    # SGLang's way may leave its query elsewhere: what it stores is compared.
    assert not agreement.disagreement(QK_NORM_ROPE, given, {"first": right, "sglang": wrong_query}, {"sglang": 1e-2})


def test_an_op_in_place_is_compared_from_the_same_inputs():
    """Run once more on what it made of them, it would differ from itself."""
    given = work(QK_NORM_ROPE, Shape(TP4, 8, BF16))
    right = QK_NORM_ROPE.bind(CPU, given, "torch")
    assert not agreement.disagreement(QK_NORM_ROPE, given, {"first": right, "second": right, "third": right}, {})
