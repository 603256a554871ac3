"""Contracts of the spec, the tables and the rows: asked, found, what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.qk_norm_rope import QKNormRopeTables
from sglang_dspark.ops.qk_norm_rope.spec import check_tables

CPU = platforms.describe("cpu", "cpu")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_q_heads": 0}, "num_q_heads: expected at least 1, found 0"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"rotary_dim": 7}, "rotary_dim: expected an even number from 2 to head_dim 16, found 7"),
        ({"rotary_dim": 18}, "rotary_dim"),
        ({"eps": -1.0}, "eps"),
        ({"eps": float("inf")}, "eps"),
        ({"qkv_dtype": torch.float16}, "qkv_dtype: found torch.float16; known are torch.bfloat16, torch.float32"),
        ({"pool_dtype": torch.uint8}, "pool_dtype"),
        ({"cos_sin_dtype": torch.float64}, "cos_sin_dtype"),
        ({"pool_layout": "dhn"}, "pool_layout: found dhn; known are nhd"),
        ({"q_fp8_dtype": torch.uint8}, "q_fp8_dtype: found torch.uint8; known are None"),
        ({"k_scale": 1.0}, "only one of k_scale and v_scale"),
        ({"k_scale": 1.0, "v_scale": 1.0}, "only an fp8 pool has them"),
        ({"k_scale": 0.0, "v_scale": 1.0, "pool_dtype": FP8}, "k_scale: expected a finite number > 0, found 0.0"),
        ({"k_scale": 1.0, "v_scale": float("nan"), "pool_dtype": FP8}, "v_scale"),
        ({"q_scale": 1.0}, "only an fp8 query has one"),
        ({"q_scale": -1.0, "q_fp8_dtype": FP8}, "q_scale: expected a finite number > 0"),
    ],
)
def test_spec_errors(spec, fields, message):
    with pytest.raises(ValueError, match=message):
        replace(spec, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"v_pool": None}, "only one of k_pool and v_pool: pass both, or neither"),
        ({"v_pool": torch.zeros(11, 2, 16, dtype=BF16)}, r"v_pool: expected shape \[10, 2, 16\], found \[11, 2, 16\]"),
        ({"k_pool": torch.zeros(10, 2, 16)}, "k_pool: expected dtype torch.bfloat16, found torch.float32"),
        ({"k_pool": torch.zeros(10, 16, 2, dtype=BF16).transpose(1, 2)}, "k_pool: expected dense rows, found strides"),
        ({"q_norm_multipliers": torch.ones(16, dtype=BF16)}, "q_norm_multipliers: expected dtype torch.float32"),
        ({"k_norm_multipliers": torch.ones(15)}, r"k_norm_multipliers: expected shape \[16\], found \[15\]"),
        ({"k_norm_multipliers": torch.ones(32)[::2]}, "k_norm_multipliers: expected a contiguous vector"),
        ({"k_norm_multipliers": torch.ones(16, device="meta")}, "expected device cpu, found meta"),
        ({"cos_sin": torch.ones(6, 4)}, r"cos_sin: expected shape \[any, 8\], found \[6, 4\]"),
        ({"cos_sin": torch.ones(6, 8, dtype=BF16)}, "cos_sin: expected dtype torch.float32"),
        ({"cos_sin": torch.ones(0, 8)}, "at least one position, and one slot in a pool, found 0 positions"),
        ({"k_pool": torch.zeros(0, 2, 16, dtype=BF16), "v_pool": torch.zeros(0, 2, 16, dtype=BF16)}, "and 0 slots"),
        ({"cos_sin": torch.ones(6, 8, device="meta")}, "platform cpu works on 'cpu', found them on meta"),
    ],
)
def test_table_errors(spec, broken_tables, fields, message):
    """Fault 4. A table on another device, or of another shape or dtype, is named before anything is launched."""
    with pytest.raises(ValueError, match=message):
        check_tables(CPU, spec, broken_tables(**fields))
    with pytest.raises(ValueError, match=message):
        qk_norm_rope.choose(CPU, spec, broken_tables(**fields), "torch")


def test_pools_are_optional_and_any_row_stride_will_do(spec, tables, broken_tables):
    check_tables(CPU, spec, broken_tables(k_pool=None, v_pool=None))
    halves = torch.zeros(10, 2, 40, dtype=BF16)  # K and V of one allocation, and padding
    check_tables(CPU, spec, broken_tables(**{f"{n}_pool": halves.flatten(1)[:, i : i + 32].unflatten(1, (2, 16))
                                             for n, i in (("k", 0), ("v", 40))}))  # fmt: skip


@pytest.mark.parametrize(("row", "alignment"), [(32, 16), (36, 8), (34, 4), (33, 2)])
def test_pool_alignment_follows_the_strides(broken_tables, row, alignment):
    pool = torch.zeros(10, row, dtype=BF16)[:, :32].unflatten(1, (2, 16))
    assert broken_tables(v_pool=pool).pool_alignment_bytes() == alignment


def test_alignment_without_pools_is_the_widest(broken_tables):
    assert broken_tables(k_pool=None, v_pool=None).pool_alignment_bytes() == 16


ROWS = {
    "qkv": torch.zeros(6, 8 * 16, dtype=BF16),
    "positions": torch.zeros(6, dtype=torch.int64),
    "slots": torch.full((6,), -1),
    "q_fp8_out": torch.zeros(6, 4, 16, dtype=torch.uint8).view(FP8),
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"qkv": torch.zeros(6, 9 * 16, dtype=BF16)}, r"qkv: expected shape \[6, 128\], found \[6, 144\]"),
        ({"qkv": torch.zeros(6, 8 * 16)}, "qkv: expected dtype torch.bfloat16"),
        ({"qkv": torch.zeros(128, 6, dtype=BF16).t()}, "qkv: expected dense rows"),
        (
            {"qkv": torch.zeros(1, 128, dtype=BF16).expand(6, -1)},
            "expected tokens at least 128 elements apart, found 0",
        ),
        ({"positions": torch.zeros(5, dtype=torch.int64)}, r"positions: expected shape \[6\], found \[5\]"),
        ({"positions": torch.zeros(6, dtype=torch.int32)}, "positions: expected dtype torch.int64"),
        ({"slots": torch.zeros(6)}, "slots: expected dtype torch.int64"),
        ({"slots": torch.zeros(12, dtype=torch.int64)[::2]}, "slots: expected a contiguous vector, found stride 2"),
        ({"q_fp8_out": torch.zeros(6, 64, dtype=torch.uint8).view(FP8)}, r"q_fp8_out: expected shape \[6, 4, 16\]"),
        ({"q_fp8_out": torch.zeros(6, 4, 16, dtype=BF16)}, "q_fp8_out: expected dtype torch.float8_e4m3fn"),
    ],
)
def test_row_errors(spec, tables, fields, message):
    run = qk_norm_rope.choose(CPU, replace(spec, q_fp8_dtype=FP8), tables, "torch").run
    run(**ROWS)
    with pytest.raises(ValueError, match=message):
        run(**{**ROWS, **fields})


def test_an_fp8_query_nobody_announced(spec, tables):
    run = qk_norm_rope.choose(CPU, spec, tables, "torch").run
    with pytest.raises(ValueError, match="q_fp8_out: the spec has no q_fp8_dtype"):
        run(**ROWS)


def test_slots_without_pools(spec, tables):
    bare = QKNormRopeTables(tables.q_norm_multipliers, tables.k_norm_multipliers, tables.cos_sin)
    run = qk_norm_rope.choose(CPU, spec, bare, "torch").run
    run(ROWS["qkv"], ROWS["positions"], None)
    with pytest.raises(ValueError, match="found slots, and no pools in the tables"):
        run(ROWS["qkv"], ROWS["positions"], ROWS["slots"])
