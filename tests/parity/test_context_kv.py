"""Every executor against the law: whole pools, bit for bit but for K, which has a bound (`bounds.py`)."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.ops.context_kv import reference
from sglang_dspark.ops.context_kv.rows import written_rows

from . import float64_law
from .bounds import check_k
from .cases import CASES, Case, Problem, problem
from .executors import EXECUTORS, Executor


def case_name(case: Case) -> str:
    return case.name


def lawful(given: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions and slots with what breaks the contract replaced by what a device makes of it."""
    inside = given.slots < given.tables.num_slots
    return given.positions.clamp(0, given.tables.num_positions - 1), torch.where(inside, given.slots, -1)


def written_k(given: Problem, storages) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """K of the written rows [n, L, H, D], their tokens [n], and the storages with those rows blanked."""
    positions, slots = lawful(given)
    rows = written_rows(slots, given.commit_lens).nonzero()[:, 0]
    row = given.spec.num_kv_heads * given.spec.head_dim
    k = [storage[slots[rows], :row].unflatten(1, (given.spec.num_kv_heads, -1)) for storage in storages[0::2]]
    rest = [storage.clone() for storage in storages]
    for storage in rest[0::2]:
        storage[slots[rows], :row] = 0
    return torch.stack(k, dim=1), rows, rest


def check_rest(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Everything but the written K, byte for byte."""
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        same = torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        what = "written V, padding or an untouched slot" if index % 2 else "padding or an untouched slot of K"
        assert same, f"{what} differs in layer {index // 2}"


@pytest.mark.parametrize("case", CASES, ids=case_name)
@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda executor: executor.name)
def test_matches_the_reference(executor: Executor, case: Case, ran):
    if executor.missing:
        pytest.skip(f"{executor.name}: {executor.missing}")
    if case.breaks_contract and executor.raises_on_broken_contract:
        with pytest.raises(IndexError, match="row 1 asks for"):
            executor.run(case)
        return
    storages = executor.run(case)
    ran(executor.name)

    expected = problem(case)
    positions, slots = lawful(expected)
    reference.write(expected.spec, expected.tables, expected.kv, positions, slots, expected.commit_lens)
    found_k, rows, found_rest = written_k(expected, storages)
    expected_k, _, expected_rest = written_k(expected, expected.storages)
    check_rest(found_rest, expected_rest)
    check_k(expected, found_k, expected_k, rows)


@pytest.mark.parametrize("case", [case for case in CASES if not case.breaks_contract], ids=case_name)
def test_reference_matches_float64(case: Case, ran):
    """The oracle itself, against arithmetic that shares nothing with it: K, V, and what must stay."""
    given, before = problem(case), problem(case)
    reference.write(given.spec, given.tables, *given.rows())
    ran("context_kv/reference/float64")

    found_k, rows, found_rest = written_k(given, given.storages)
    check_k(given, found_k, torch.from_numpy(float64_law.expected_k(given))[rows], rows)
    _, _, expected_rest = written_k(before, before.storages)
    row = given.spec.num_kv_heads * given.spec.head_dim
    for layer, storage in enumerate(expected_rest[1::2]):
        storage[given.slots[rows], :row] = given.kv[rows, layer, 1].flatten(1)
    check_rest(found_rest, expected_rest)


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)
