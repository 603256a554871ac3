"""One bad value among many is found, whatever the dtype; big finite ones are not taken for it."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.models.finite_weights import problem_with

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_bad_value(dtype: torch.dtype) -> None:
    weight = torch.randn(64, 33, generator=torch.Generator().manual_seed(5)).to(dtype)
    assert problem_with("fc.weight", weight) is None
    weight[40, 7] = float("nan")
    problem = problem_with("fc.weight", weight)
    assert problem is not None
    assert "tensor fc.weight" in problem and "1 of 2112" in problem and "[40, 7] (nan)" in problem


def test_infinities_that_cancel() -> None:
    """inf - inf is NaN, so the sum still shows them."""
    weight = torch.ones(8)
    weight[2], weight[5] = float("inf"), -float("inf")
    problem = problem_with("w", weight)
    assert problem is not None and "2 of 8" in problem and "[2] (inf)" in problem


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_huge_finite_values_pass(dtype: torch.dtype) -> None:
    """Their sum in float32 overflows."""
    assert problem_with("w", torch.full((9,), torch.finfo(dtype).max, dtype=dtype)) is None


def test_packed_integers_and_empty_tensors_pass() -> None:
    assert problem_with("w", torch.zeros(4, dtype=torch.uint8)) is None
    assert problem_with("w", torch.zeros(0)) is None
