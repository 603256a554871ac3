"""How many elements of a run may differ from the law: flips are counted, and what is no flip is not taken for one."""

from __future__ import annotations

import pytest
import torch

from .bounds import FP8_BOUND, K_BOUNDS, Bound, check_share

ROWS, HEADS, D = 6, 4, 34
BF16 = K_BOUNDS[torch.bfloat16]


def check(changed: torch.Tensor, bound: Bound = BF16, *, lost: bool = False) -> None:
    """Elements that are a bf16 step away, or zero, where `changed` says so; all values differ."""
    expected = torch.arange(1, 1 + changed.numel(), dtype=torch.float64).reshape(changed.shape)
    found = torch.where(changed, 0.0 if lost else expected * (1 + 2**-7), expected)
    check_share(found, expected, ~changed, bound)


def of(*places: tuple[int, int, int]) -> torch.Tensor:
    changed = torch.zeros(ROWS, HEADS, D, dtype=torch.bool)
    for place in places:
        changed[place] = True
    return changed


def test_two_may_and_three_may_not() -> None:
    check(of((0, 0, 0), (3, 2, 9)))
    with pytest.raises(AssertionError, match="3 of 816 elements differ, in 3 ways"):
        check(of((0, 0, 0), (3, 2, 9), (5, 3, 1)))


def test_more_elements_may_have_more() -> None:
    many = torch.zeros(10_000, 1, 1, dtype=torch.bool)
    many[:10] = True
    check(many)
    many[10] = True
    with pytest.raises(AssertionError):
        check(many)


def one_number_at(place: int | slice, bound: Bound) -> None:
    """19 * 2^-133 doubled and negated in every row, a step away at these places of D."""
    signs = torch.tensor([1.0, -1.0, 2.0, -2.0, 4.0, 8.0], dtype=torch.float64)[:, None, None]
    expected = (signs * 19 * 2.0**-133).expand(ROWS, HEADS, D).contiguous()
    found = expected.clone()
    found[:, :, place] *= 1 + 2**-7
    check_share(found, expected, found == expected, bound)


def test_one_number_at_one_place_flips_once() -> None:
    one_number_at(6, BF16)
    with pytest.raises(AssertionError, match="24 of 816"):
        one_number_at(6, FP8_BOUND)


def test_one_number_everywhere_is_no_flip() -> None:
    """A rounding point left out, on inputs that are all alike."""
    with pytest.raises(AssertionError, match="816 of 816 elements differ, in 34 ways"):
        one_number_at(slice(None), BF16)


def test_numbers_lost_to_zero_count_one_by_one() -> None:
    changed = of()
    changed[:, 0, 6] = True
    with pytest.raises(AssertionError, match="6 of 816 elements differ, in 6 ways"):
        check(changed, lost=True)
