"""Budgets of the context KV writer's AMD code: what a wave executes, asks of memory, and occupies.

The budgets are those of a prototype that reached 28.5 instructions a row on gfx942 and 24.9 on gfx950 (fp8 47.5 and
40.8), with room for what it lacked. Everything executed counts: waits, no-ops and the end as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from tests.amdgcn.chip import CHIPS
from tests.parity import emulated

from .workload import FP8, rows_to_write

LOADS_AND_STORES_A_WAVE = 11  # K, V, multipliers twice, cos and sin twice, slot and position; the K and the V store
VECTOR_REGISTERS = 64  # 512 in a SIMD: eight waves at a time


@dataclass(frozen=True)
class Budget:
    """Of one chip and pool type."""

    instructions_a_row: float
    store_bytes: int
    round_trips: int  # rows and indices, then cos and sin, which the position decides; in fp8 scales may come between


BUDGETS = {
    ("gfx942", "bf16"): Budget(30, 16, 2),
    ("gfx950", "bf16"): Budget(26, 16, 2),
    ("gfx942", "fp8"): Budget(50, 8, 3),
    ("gfx950", "fp8"): Budget(43, 8, 3),
}
variants = pytest.mark.parametrize("heads", [1, 4])
targets = pytest.mark.parametrize(("arch", "pool"), BUDGETS)


def counted(arch: str, pool: str, heads: int, cannot_check):
    """Counters, rows and kernel of one launch."""
    if reason := emulated.missing(arch):
        cannot_check(reason)
    return launched(arch, pool, heads)


@cache
def launched(arch: str, pool: str, heads: int):
    given, rows = rows_to_write(heads, 16 // heads, FP8[arch] if pool == "fp8" else None)
    driver = emulated.write(given, CHIPS[arch])
    (kernel,) = driver.kernels
    return driver.counters, rows, kernel


@variants
@targets
def test_executed_instructions(arch, pool, heads, figure, cannot_check):
    counters, rows, kernel = counted(arch, pool, heads, cannot_check)
    budget = BUDGETS[arch, pool]
    found = counters.executed / rows
    figure(
        f"{arch} {pool} H={heads}",
        f"{found:.1f} instructions and {counters.bytes.total() / rows:.0f} bytes asked for a row; "
        f"{counters.vector_memory / counters.waves:.0f} vector memory instructions a wave; "
        f"{counters.round_trips} round trips; "
        f"{kernel.metadata['.vgpr_count']} VGPRs",
    )
    assert counters.waves * 8 == rows, "a wave has eight rows here, or the figure says nothing"
    assert found <= budget.instructions_a_row


@variants
@targets
def test_memory_accesses(arch, pool, heads, cannot_check):
    """A lost alignment shows as narrow accesses, a lost layout as more of them, a wait too early as round trips."""
    counters, rows, _ = counted(arch, pool, heads, cannot_check)
    budget = BUDGETS[arch, pool]
    assert counters.vector_memory <= LOADS_AND_STORES_A_WAVE * counters.waves
    assert counters.round_trips <= budget.round_trips
    widths = {(what, buffer): width for what, buffer, width in counters.accesses}
    assert widths["load", "kv"] == 16
    stores = {width for (what, _), width in widths.items() if what == "store"}
    assert stores == {budget.store_bytes}
    assert all(width >= 4 for _, _, width in counters.accesses)
    # Each byte of K and V is loaded once and stored once.
    row_bytes = 128 * 2
    assert counters.bytes["store"] == rows * row_bytes * budget.store_bytes // 16
    kv_loads = sum(count for (what, buffer, _), count in counters.accesses.items() if (what, buffer) == ("load", "kv"))
    assert kv_loads * 64 * 16 == rows * row_bytes


@targets
def test_registers_and_what_must_not_be_there(arch, pool, cannot_check):
    counters, _, kernel = counted(arch, pool, 1, cannot_check)
    facts = kernel.metadata
    assert facts[".vgpr_count"] <= VECTOR_REGISTERS
    assert facts[".agpr_count"] == 0
    assert facts[".vgpr_spill_count"] == facts[".sgpr_spill_count"] == 0
    assert facts[".private_segment_fixed_size"] == facts[".group_segment_fixed_size"] == 0
    assert counters.kinds["lds"] == counters.kinds["barrier"] == 0
    assert not any(name.startswith(("flat_", "scratch_", "buffer_")) for name in counters.names)
    # Arguments arrive in registers: 14 dwords beside the pointer to the rest.
    assert kernel.descriptor.preload_dwords == 14


@targets
def test_products_and_sums_stay_apart(arch, pool, cannot_check):
    """Contraction would drop one of the law's roundings. Fused operations only refine the root and split the scale."""
    counters, rows, _ = counted(arch, pool, 1, cannot_check)
    fused = sum(count for name, count in counters.names.items() if name.startswith(("v_fma", "v_pk_fma")))
    assert fused <= (10 if pool == "bf16" else 18) * counters.waves
