"""The comparison with the law: what counts as out of bounds."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.ops.aiter.trial import COPY, Bound, outside, partner_magnitude
from sglang_dspark.ops.aiter.weights import gemma_weights

BOUND = Bound(2**-7, 1, "of this test")
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "bound", "wrong"),
    [
        (1.0078125, 1.0, BOUND, 0),
        (1.015625, 1.0, BOUND, 1),
        (1.0078125, 1.0, COPY, 1),
        (2**-133, 0.0, BOUND, 0),
        (2**-133, 0.0, COPY, 1),
        (NAN, NAN, COPY, 0),
        (NAN, 1.0, BOUND, 1),
        (1.0, NAN, BOUND, 1),
        (INFINITY, INFINITY, COPY, 0),
        (INFINITY, 1.0, BOUND, 1),
    ],
)
def test_outside(found, expected, bound, wrong):
    one, other = (torch.tensor([x], dtype=torch.bfloat16) for x in (found, expected))
    assert outside(bound, one, other, other.double().abs()) == wrong


def test_an_fp8_value_counts_times_its_scale():
    one, other = (torch.tensor([x]).to(torch.float8_e4m3fn) for x in (1.125, 1.0))
    assert outside(Bound(0.125, 0, ""), one, other, torch.tensor([8.0]), scale=8.0) == 0
    assert outside(Bound(0.125, 0, ""), one, other, torch.tensor([7.0]), scale=8.0) == 1


@pytest.mark.parametrize(("is_neox", "expected"), [(True, [4, 6, 4, 6, 5]), (False, [3, 3, 7, 7, 5])])
def test_partner_magnitude(is_neox, expected):
    assert partner_magnitude(torch.tensor([1.0, -2, 3, -4, -5]), 4, is_neox).tolist() == expected


def test_every_bf16_weight_comes_back():
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    weights = bits.view(torch.bfloat16)
    weights = weights[weights.isfinite()]
    multipliers = 1 + weights.float()
    assert torch.equal(1 + gemma_weights(multipliers, torch.bfloat16).float(), multipliers)
    assert torch.equal(1 + gemma_weights(multipliers, torch.float32), multipliers)
