"""Every executor against the law: Q and K within their bound, every other byte exactly (`checks.py`)."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.ops.qk_norm_rope import reference

from . import float64_law
from .cases import CASES, Case, Problem, problem
from .checks import check_qk, check_rest
from .executors import EXECUTORS, Executor

LAWFUL_CASES = tuple(case for case in CASES if not case.breaks_contract)


def case_name(case: Case) -> str:
    return case.name


def qk(given: Problem, storages) -> torch.Tensor:
    """Q and K in place: [T, Hq + Hkv, D]."""
    heads = storages["qkv"][:, : given.qkv.shape[1]].unflatten(1, (-1, given.spec.head_dim))
    return heads[:, : -given.spec.num_kv_heads]


def run_law(given: Problem) -> None:
    """The reference, on what a device makes of rows that break the contract."""
    positions = given.positions.clamp(0, given.tables.num_positions - 1)
    slots = given.slots
    if slots is not None:
        slots = torch.where(slots < given.tables.num_slots, slots, -1)
    reference.run(given.spec, given.tables, given.qkv, positions, slots, given.q_fp8_out)


@pytest.mark.parametrize(
    ("executor", "case"),
    [
        pytest.param(executor, case, id=f"{executor.name}-{case.name}")
        for executor in EXECUTORS
        for case in CASES
        if executor.covers(case)
    ],
)
def test_matches_the_reference(executor: Executor, case: Case, ran):
    """Faults 3, 5 and 20: both fp8 formats, every ratio of heads, no rows and rows without a slot."""
    if executor.missing:
        pytest.skip(f"{executor.name}: {executor.missing}")
    if case.breaks_contract and executor.raises_on_broken_contract:
        with pytest.raises(IndexError, match="row 1 asks for"):
            executor.run(case)
        return
    storages = executor.run(case)
    ran(executor.name)
    check_law(case, storages)


def check_law(case: Case, storages: dict[str, torch.Tensor]) -> None:
    """Fail where an executor's storages are not what the law makes of the case."""
    law = problem(case)
    run_law(law)
    check_qk(problem(case), qk(law, storages), qk(law, law.storages))
    check_rest(problem(case), storages)


@pytest.mark.parametrize("case", LAWFUL_CASES, ids=case_name)
def test_reference_matches_float64(case: Case, ran):
    """The oracle itself, against arithmetic that shares nothing with it."""
    given = problem(case)
    expected = torch.from_numpy(float64_law.expected_qk(given))
    reference.run(given.spec, given.tables, *given.rows())
    ran("qk_norm_rope/reference/float64")
    check_qk(problem(case), qk(given, given.storages), expected)
    check_rest(problem(case), given.storages)


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)
