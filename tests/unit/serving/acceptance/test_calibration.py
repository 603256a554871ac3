"""The cells of predicted survival against a plain loop, and the error that is computed from them."""

from __future__ import annotations

import math

import torch

from sglang_dspark.serving.acceptance.calibration import BINS, NOT_A_NUMBER, Cell, SurvivalBins

GAMMA = 3


def by_loop(confidence, proposed, accepted) -> dict[tuple[int, int], list[float]]:
    cells: dict[tuple[int, int], list[float]] = {}
    for row, width, right in zip(confidence.tolist(), proposed, accepted, strict=True):
        survival = 1.0
        for position in range(width):
            survival *= row[position]
            cell = cells.setdefault((position + 1, min(int(survival * BINS), BINS - 1)), [0, 0.0, 0])
            cell[0] += 1
            cell[1] += survival
            cell[2] += position < right
    return cells


def test_cells_are_what_a_loop_counts() -> None:
    """Survival is the running product, a proposal counts where it was verified, and it survived where it was
    accepted."""
    torch.manual_seed(0)
    confidence = torch.rand(200, GAMMA)
    proposed = torch.randint(0, GAMMA + 1, (200,)).tolist()
    accepted = [int(torch.randint(0, most + 1, ())) for most in proposed]
    bins = SurvivalBins()
    for start in range(0, 200, 7):
        part = slice(start, start + 7)
        bins.add(confidence[part], proposed[part], accepted[part])
    cells = {(cell.position, cell.bin): cell for cell in bins.take()}
    expected = by_loop(confidence, proposed, accepted)
    assert cells.keys() == expected.keys()
    for key, (count, predicted, survived) in expected.items():
        assert (cells[key].count, cells[key].accepted) == (count, survived)
        assert math.isclose(cells[key].predicted, predicted, rel_tol=1e-5)
    assert list(bins.take()) == []


def test_a_prediction_of_one_is_in_the_last_bin() -> None:
    bins = SurvivalBins()
    bins.add(torch.ones(1, GAMMA), [GAMMA], [GAMMA])
    assert list(bins.take()) == [Cell(place, BINS - 1, 1, 1.0, 1) for place in (1, 2, 3)]


def test_predictions_that_are_no_number_are_shown() -> None:
    """A head in NaNs counted as confidence zero would look like a careful one."""
    bins = SurvivalBins()
    bins.add(torch.tensor([[0.5, float("nan"), 0.5]]), [GAMMA], [1])
    cells = list(bins.take())
    assert [(cell.position, cell.bin) for cell in cells] == [(1, 5), (2, NOT_A_NUMBER), (3, NOT_A_NUMBER)]


def test_bf16_confidences_multiply_in_float32() -> None:
    """A product in bf16 would move cells."""
    confidence = torch.full((1, GAMMA), 0.9, dtype=torch.bfloat16)
    bins = SurvivalBins()
    bins.add(confidence, [GAMMA], [0])
    expected = float(confidence[0, 0])
    (first, second, third) = bins.take()
    assert math.isclose(third.predicted, expected**3, rel_tol=1e-6) and first.predicted == expected
    assert math.isclose(second.predicted, expected**2, rel_tol=1e-6)
