"""Contracts of the spec, the tables and the rows: asked, found, what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv.spec import check_tables

CPU = platforms.describe("cpu", "cpu")
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 0}, "num_layers: expected at least 1, found 0"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"rotary_dim": 7}, "rotary_dim: expected an even number from 2 to head_dim 16, found 7"),
        ({"rotary_dim": 18}, "rotary_dim"),
        ({"rotary_dim": 0}, "rotary_dim"),
        ({"eps": -1.0}, "eps"),
        ({"eps": float("nan")}, "eps"),
        ({"kv_dtype": torch.float16}, "kv_dtype: found torch.float16; known are torch.bfloat16, torch.float32"),
        ({"pool_dtype": torch.uint8}, "pool_dtype"),
        ({"cos_sin_dtype": torch.float64}, "cos_sin_dtype"),
        ({"pool_layout": "dhn"}, "pool_layout: found dhn; known are nhd"),
        ({"k_scales": (1.0, 1.0)}, "only one of k_scales and v_scales"),
        ({"k_scales": (1.0, 1.0), "v_scales": (1.0, 1.0)}, "only an fp8 pool"),
        ({"k_scales": (1.0,), "v_scales": (1.0, 1.0), "pool_dtype": FP8}, "k_scales: expected 2 finite"),
        ({"k_scales": (1.0, 1.0), "v_scales": (1.0, 0.0), "pool_dtype": FP8}, "v_scales: expected 2 finite"),
    ],
)
def test_spec_errors(spec, fields, message):
    with pytest.raises(ValueError, match=message):
        replace(spec, **fields)


def test_fp8_spec_holds_scales(spec):
    assert not spec.has_scales
    assert replace(spec, pool_dtype=FP8, k_scales=(1.0, 2.0), v_scales=(1.0, 2.0)).has_scales


def pools(*shape, dtype=BF16):
    return tuple(torch.zeros(shape, dtype=dtype) for _ in range(2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k_pools": pools(10, 2, 16)[:1]}, "k_pools: expected 2, one a layer, found 1"),
        ({"v_pools": pools(11, 2, 16)}, r"v_pools\[0\]: expected shape \[10, 2, 16\], found \[11, 2, 16\]"),
        ({"v_pools": pools(10, 1, 16)}, r"v_pools\[0\]: expected shape"),
        ({"k_pools": pools(10, 2, 16, dtype=torch.float32)}, "expected dtype torch.bfloat16, found torch.float32"),
        ({"k_pools": tuple(p.transpose(1, 2) for p in pools(10, 16, 2))}, "expected dense rows, found strides"),
        ({"norm_multipliers": torch.ones(2, 16, dtype=BF16)}, "norm_multipliers: expected dtype torch.float32"),
        ({"norm_multipliers": torch.ones(3, 16)}, "norm_multipliers: expected shape"),
        ({"cos_sin": torch.ones(6, 4)}, r"cos_sin: expected shape \[any, 8\], found \[6, 4\]"),
        ({"cos_sin": torch.ones(6, 8, dtype=BF16)}, "cos_sin: expected dtype torch.float32"),
        ({"cos_sin": torch.ones(0, 8)}, "at least one position and one slot, found 0 positions"),
        ({"norm_multipliers": torch.ones(2, 16, device="meta")}, "norm_multipliers: expected device cpu, found meta"),
        ({"cos_sin": torch.ones(6, 8, device="meta")}, "platform cpu works on 'cpu', found them on meta"),
    ],
)
def test_table_errors(spec, broken_tables, fields, message):
    """Fault 4. A table on another device, or of another shape or dtype, is named before anything is launched."""
    with pytest.raises(ValueError, match=message):
        check_tables(CPU, spec, broken_tables(**fields))


def test_choose_checks_the_tables(spec, broken_tables):
    with pytest.raises(ValueError, match="cos_sin"):
        context_kv.choose(CPU, spec, broken_tables(cos_sin=torch.ones(6, 4)))


def test_any_row_stride_is_accepted(spec, broken_tables):
    """Pools that are halves of one allocation, with rows apart; a single head's stride may be anything."""
    views = tuple(torch.zeros(10, 50, dtype=BF16)[:, :32].unflatten(1, (2, 16)) for _ in range(2))
    check_tables(CPU, spec, broken_tables(k_pools=views))
    one_head = tuple(torch.zeros(10, 5, 16, dtype=BF16)[:, ::5] for _ in range(2))
    check_tables(CPU, replace(spec, num_kv_heads=1), broken_tables(k_pools=one_head, v_pools=one_head))


@pytest.mark.parametrize(("row", "alignment"), [(32, 16), (36, 8), (34, 4), (33, 2)])
def test_row_alignment_follows_the_strides(broken_tables, row, alignment):
    views = tuple(torch.zeros(10, row, dtype=BF16)[:, :32].unflatten(1, (2, 16)) for _ in range(2))
    assert broken_tables(v_pools=views).row_alignment_bytes() == alignment


def test_row_alignment_follows_the_addresses(broken_tables):
    views = tuple(torch.zeros(10, 48, dtype=BF16)[:, 1:33].unflatten(1, (2, 16)) for _ in range(2))
    assert broken_tables(k_pools=views).row_alignment_bytes() == 2


ROWS = {
    "kv": torch.zeros(6, 2, 2, 2, 16, dtype=BF16),
    "positions": torch.zeros(6, dtype=torch.int64),
    "slots": torch.full((6,), -1),
    "commit_lens": torch.zeros(2, dtype=torch.int32),
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv": torch.zeros(6, 3, 2, 2, 16, dtype=BF16)}, r"kv: expected shape \[6, 2, 2, 2, 16\], found \[6, 3"),
        ({"kv": torch.zeros(6, 2, 2, 2, 16)}, "kv: expected dtype torch.bfloat16"),
        ({"kv": torch.zeros(6, 2, 2, 16, 2, dtype=BF16).transpose(3, 4)}, "kv: expected dense rows"),
        ({"positions": torch.zeros(5, dtype=torch.int64)}, r"positions: expected shape \[6\], found \[5\]"),
        ({"positions": torch.zeros(6, dtype=torch.int32)}, "positions: expected dtype torch.int64"),
        ({"slots": torch.zeros(6)}, "slots: expected dtype torch.int64"),
        ({"slots": torch.zeros(12, dtype=torch.int64)[::2]}, "slots: expected a contiguous vector, found stride 2"),
        (
            {"commit_lens": torch.zeros(4, dtype=torch.int32)},
            "expected B entries with T = B [*] W, found B = 4 and T = 6",
        ),
        ({"commit_lens": torch.zeros(0, dtype=torch.int32)}, "found B = 0 and T = 6"),
        ({"commit_lens": torch.zeros(2, dtype=torch.int16)}, "commit_lens: expected dtype torch.int32"),
    ],
)
def test_row_errors(spec, tables, fields, message):
    run = context_kv.choose(CPU, spec, tables).run
    run(**ROWS)
    with pytest.raises(ValueError, match=message):
        run(**{**ROWS, **fields})
