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


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers: not every torch can index an 8-bit float."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.itemsize])


def written(given: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is written, layer after layer: the tokens, layers and slots, [n] each."""
    slots = lawful(given)[1].expand(given.spec.num_layers, -1)
    layers, tokens = torch.stack([written_rows(of_layer, given.commit_lens) for of_layer in slots]).nonzero().unbind(1)
    return tokens, layers, slots[layers, tokens]


def written_k(given: Problem, storages) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """K of the written rows [n, H, D], and the storages with those rows blanked."""
    _, layers, slots = written(given)
    heads, row = given.spec.num_kv_heads, given.spec.num_kv_heads * given.spec.head_dim
    rest = [bits(storage).clone() for storage in storages]
    k = []
    for layer in range(given.spec.num_layers):
        at = slots[layers == layer]
        k.append(bits(storages[2 * layer])[at, :row].view(storages[0].dtype).unflatten(1, (heads, -1)))
        rest[2 * layer][at, :row] = 0
    return torch.cat([bits(of_layer) for of_layer in k]).view(storages[0].dtype), rest


def check_rest(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Everything but the written K, byte for byte."""
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        same = torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        what = "written V, padding or an untouched slot" if index % 2 else "padding or an untouched slot of K"
        assert same, f"{what} differs in layer {index // 2}"


PAIRS = [(executor, case) for executor in EXECUTORS for case in CASES if executor.covers(case)]


@pytest.mark.parametrize(("executor", "case"), PAIRS, ids=[f"{executor.name}-{case.name}" for executor, case in PAIRS])
def test_matches_the_reference(executor: Executor, case: Case, ran):
    """Faults 3, 5 and 20: both fp8 formats, every count of heads, no rows and rows without a slot."""
    if executor.missing:
        pytest.skip(f"{executor.name}: {executor.missing}")
    if case.breaks_contract and executor.raises_on_broken_contract:
        with pytest.raises(IndexError, match="row 1 asks for"):
            executor.run(case)
        return
    storages = executor.run(case)
    ran(executor.name)
    check_law(case, storages)


def check_law(case: Case, storages: list[torch.Tensor]) -> None:
    """Fail where an executor's storages are not what the law makes of the case."""
    expected = problem(case)
    positions, slots = lawful(expected)
    reference.write(expected.spec, expected.tables, expected.kv, positions, slots, expected.commit_lens)
    found_k, found_rest = written_k(expected, storages)
    expected_k, expected_rest = written_k(expected, expected.storages)
    check_rest(found_rest, expected_rest)
    check_k(expected, found_k, expected_k, *written(expected)[:2])


# The fp8 step has a test of its own against the formats' definition (tests/unit/ops/context_kv/test_reference_fp8.py).
FLOAT64_CASES = [case for case in CASES if not case.breaks_contract and case.pool_dtype is None]


@pytest.mark.parametrize("case", FLOAT64_CASES, ids=case_name)
def test_reference_matches_float64(case: Case, ran):
    """The oracle itself, against arithmetic that shares nothing with it: K, V, and what must stay."""
    given, before = problem(case), problem(case)
    reference.write(given.spec, given.tables, *given.rows())
    ran("context_kv/reference/float64")

    tokens, layers, slots = written(given)
    found_k, found_rest = written_k(given, given.storages)
    check_k(given, found_k, torch.from_numpy(float64_law.expected_k(given))[tokens, layers], tokens, layers)
    _, expected_rest = written_k(before, before.storages)
    row = given.spec.num_kv_heads * given.spec.head_dim
    for layer, storage in enumerate(expected_rest[1::2]):
        of_layer = layers == layer
        storage[slots[of_layer], :row] = bits(given.kv)[tokens[of_layer], layer, 1].flatten(1)
    check_rest(found_rest, expected_rest)


def test_uncovered_cases_are_few():
    """A `covers` that is too narrow would pass for parity."""
    left_out = {executor.name: [case.name for case in CASES if not executor.covers(case)] for executor in EXECUTORS}
    native = ["odd_pool_stride", "dim_96_rotary_32", "float32", "float32_interleaved"]
    assert left_out["context_kv/host/cpu"] == native[1:]
    for executor in ("hip/stand-in-driver", "cuda/stand-in-driver", "hip/gfx942-emulated", "hip/gfx950-emulated"):
        assert left_out[f"context_kv/{executor}"] == native
    assert len(left_out["context_kv/torch/cpu"]) == 14


def test_cases_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES)
