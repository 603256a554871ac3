"""A token's K and V are the same bytes in the pool, whether the block's op stored them or the context writer.

The context writer is given the K and V part of qkv as a context of one layer. Then a token that is drafted in a block,
accepted, and later written again as context does not change what attention reads. The catch would be a rounding point,
a scale, or an order of summation of one op's own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv, qk_norm_rope
from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.context_kv import reference as context_law
from sglang_dspark.ops.qk_norm_rope import reference

from .cases import CASES, Case, Problem, problem
from .checks import same_bytes
from .executors import NO_COMPILER, native

CPU = platforms.describe("cpu", "cpu")
STORED = [case for case in CASES if case.pools and case.slots is not None and not case.breaks_contract]
Run = Callable[[Problem], None]


def as_context(given: Problem) -> tuple[ContextKVSpec, ContextKVTables, tuple[torch.Tensor, ...]]:
    """The same K, V, tables and slots for the context writer."""
    spec, tables = given.spec, given.tables
    assert tables.k_pool is not None and tables.v_pool is not None and given.slots is not None
    context_spec = ContextKVSpec(
        num_layers=1,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rotary_dim=spec.rotary_dim,
        is_neox=spec.is_neox,
        eps=spec.eps,
        kv_dtype=spec.qkv_dtype,
        pool_dtype=spec.pool_dtype,
        cos_sin_dtype=spec.cos_sin_dtype,
        k_scales=None if spec.k_scale is None else (spec.k_scale,),
        v_scales=None if spec.v_scale is None else (spec.v_scale,),
    )
    multipliers = tables.k_norm_multipliers[None]
    context_tables = ContextKVTables((tables.k_pool,), (tables.v_pool,), multipliers, tables.cos_sin)
    kv = given.qkv[:, spec.num_q_heads * spec.head_dim :].unflatten(1, (1, 2, spec.num_kv_heads, spec.head_dim))
    return context_spec, context_tables, (kv, given.positions, given.slots)


def block_law(given: Problem) -> None:
    reference.run(given.spec, given.tables, *given.rows())


def context_law_of(given: Problem) -> None:
    spec, tables, rows = as_context(given)
    context_law.write(spec, tables, *rows)


def block_on(backend: str) -> Run:
    return lambda given: qk_norm_rope.choose(CPU, given.spec, given.tables, backend).run(*given.rows())


def context_on(backend: str) -> Run:
    def run(given: Problem) -> None:
        spec, tables, rows = as_context(given)
        context_kv.choose(CPU, spec, tables, backend).run(*rows)

    return run


def check(case: Case, block: Run, context: Run) -> None:
    as_block, written = problem(case), problem(case)
    block(as_block)
    context(written)
    for name in ("k", "v"):
        assert same_bytes(as_block.storages[name], written.storages[name]), name


@pytest.mark.parametrize("case", STORED, ids=lambda case: case.name)
def test_by_law(case):
    check(case, block_law, context_law_of)


@pytest.mark.skipif(bool(NO_COMPILER), reason=NO_COMPILER)
@pytest.mark.parametrize("case", [case for case in STORED if native(case)], ids=lambda case: case.name)
def test_in_the_compiled_kernels(case):
    check(case, block_on("host"), context_on("host"))


@pytest.mark.parametrize("case", [case for case in STORED if case.pool_dtype is None], ids=lambda case: case.name)
def test_in_torch(case):
    check(case, block_on("torch"), context_on("torch"))
