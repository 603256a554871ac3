"""Budgets of the query block's AMD code, derived in `hip/qk_norm_rope_insert.h` before it was tuned.

A wave has four Q rows, or four K rows and their four V rows; the figures are apart, since a block has one kind. Counted
on MiniMax-M3's draft: heads of 128, the first 64 dims rotated, cos and sin in float32, every wave full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from tests.amdgcn.chip import CHIPS
from tests.amdgcn.counters import Counters
from tests.parity.qk_norm_rope import emulated
from tests.parity.qk_norm_rope.cases import Case, problem

VECTOR_REGISTERS = 64  # 512 in a SIMD: eight waves at a time
ROUND_TRIPS = 3  # rows, position and slot; cos and sin, which the position decides; in fp8 the scales may come between
FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Budget:
    """Of one chip and pool type, a row: of Q, and of K or V."""

    query: float
    key_value: float


BUDGETS = {
    ("gfx942", "bf16"): Budget(48, 30),
    ("gfx950", "bf16"): Budget(40, 26),
    ("gfx942", "fp8"): Budget(72, 50),
    ("gfx950", "fp8"): Budget(58, 43),
}
QUERY_ACCESSES, KEY_VALUE_ACCESSES = 9, 13  # a wave; 10 with an fp8 query
targets = pytest.mark.parametrize(("arch", "pool"), BUDGETS)


@cache
def counted(arch: str, pool: str) -> tuple[Counters, Counters, dict]:
    """The counters of four Q waves, those of a K and V wave, and the kernel's facts.

    Two launches, with four and with eight query heads: the difference is the Q waves'.
    """
    dtype = FP8[arch] if pool == "fp8" else None
    case = Case("budget", "", tokens=4, heads=(4, 1), pool_dtype=dtype, q_fp8_dtype=dtype,
                pool_scales=(0.5, 0.25) if dtype else None)  # fmt: skip
    few, many = (emulated.run(problem(replace(case, heads=heads)), CHIPS[arch]) for heads in ((4, 1), (8, 1)))
    query, key_value = Counters(), Counters()
    for name in ("kinds", "names", "accesses", "bytes"):
        getattr(query, name).update(getattr(many.counters, name))
        getattr(query, name).subtract(getattr(few.counters, name))
        getattr(key_value, name).update(getattr(few.counters, name))
        getattr(key_value, name).subtract(getattr(query, name))
    query.waves = many.counters.waves - few.counters.waves
    key_value.waves = few.counters.waves - query.waves
    assert (query.waves, key_value.waves) == (4, 1)
    query.round_trips = key_value.round_trips = few.counters.round_trips
    return query, key_value, few.kernels[0].metadata


@pytest.fixture
def counters(arch, pool, cannot_check):
    if reason := emulated.missing(arch):
        cannot_check(reason)
    return counted(arch, pool)


@targets
def test_executed_instructions(counters, arch, pool, figure):
    query, key_value, facts = counters
    budget = BUDGETS[arch, pool]
    q_row, kv_row = query.executed / (4 * query.waves), key_value.executed / 8
    figure(
        f"{arch} {pool} query block",
        f"Q {q_row:.1f}, K and V {kv_row:.1f} instructions a row; {query.vector_memory / query.waves:.0f} and "
        f"{key_value.vector_memory} vector memory instructions a wave; {query.round_trips} round trips; "
        f"{facts['.vgpr_count']} VGPRs",
    )
    assert q_row <= budget.query
    assert kv_row <= budget.key_value


@targets
def test_memory_accesses(counters, pool):
    """A lost alignment shows as narrow accesses, a wait too early as round trips."""
    query, key_value, _ = counters
    assert query.vector_memory <= (QUERY_ACCESSES + (pool == "fp8")) * query.waves
    assert key_value.vector_memory <= KEY_VALUE_ACCESSES
    assert query.round_trips <= ROUND_TRIPS
    for one in (query, key_value):
        widths = {(what, buffer): width for (what, buffer, width), count in one.accesses.items() if count}
        assert widths["load", "qkv"] == widths["store", "qkv"] == 16
        assert all(width >= 8 for width in widths.values())
    # Each byte of Q and K is loaded and stored once, and V loaded once.
    row_bytes, fp8 = 128 * 2, pool == "fp8"
    assert query.bytes["store"] == 16 * (row_bytes + (row_bytes // 2 if fp8 else 0))
    assert key_value.bytes["store"] == 4 * row_bytes + 8 * row_bytes // (2 if fp8 else 1)


@targets
def test_registers_and_what_must_not_be_there(counters):
    query, key_value, facts = counters
    assert facts[".vgpr_count"] <= VECTOR_REGISTERS
    assert facts[".agpr_count"] == facts[".vgpr_spill_count"] == facts[".sgpr_spill_count"] == 0
    assert facts[".private_segment_fixed_size"] == facts[".group_segment_fixed_size"] == 0
    for one in (query, key_value):
        assert one.kinds["lds"] == one.kinds["barrier"] == 0
        assert not any(name.startswith(("flat_", "scratch_", "buffer_")) for name, count in one.names.items() if count)
