"""The calibration error and what surrounds it, against SGLang's own figure and against sums by hand."""

from __future__ import annotations

import pytest
import torch
from sglang.benchmark.dspark_sts_fit import expected_calibration_error

from sglang_dspark.evaluate.calibration import brier_score, calibration_error, judge, ranking, reliability, survival
from tests.unit.evaluate.rounds import drawn


def test_equal_to_sglangs_own_figure() -> None:
    """The server's log, its fitter and our report must not give three different errors for one head."""
    generator = torch.Generator().manual_seed(1)
    for shape in (1, 7, 1000):
        predicted = torch.rand(shape, generator=generator, dtype=torch.float64)
        outcomes = (torch.rand(shape, generator=generator) < 0.6).float()
        theirs = expected_calibration_error(probs=predicted, targets=outcomes, num_bins=15)
        assert calibration_error(predicted, outcomes) == pytest.approx(theirs, abs=1e-6)


def test_by_hand() -> None:
    """Two bins: 0.9 said and half kept, 0.1 said and none kept."""
    predicted = torch.tensor([0.9, 0.9, 0.1, 0.1])
    outcomes = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert calibration_error(predicted, outcomes) == pytest.approx((2 * 0.4 + 2 * 0.1) / 4)
    assert brier_score(predicted, outcomes) == pytest.approx((0.1**2 + 0.9**2 + 2 * 0.1**2) / 4)
    assert reliability(predicted, outcomes) == [
        (pytest.approx(0.1), 0.0, 2),
        (pytest.approx(0.9), 0.5, 2),
    ]


def test_survival_is_the_running_product() -> None:
    """The scheduler's quantity; a temperature divides the logit of its own position, and moves all after it."""
    logits = torch.tensor([[0.0, 2.0]])
    assert survival(logits)[0].tolist() == pytest.approx([0.5, 0.5 / (1 + torch.e**-2.0)])
    assert survival(logits, [1.0, 2.0])[0].tolist() == pytest.approx([0.5, 0.5 / (1 + torch.e**-1.0)])


def test_the_right_temperatures_mend_an_overconfident_head() -> None:
    """Logits twice as large as the truth: temperature 2 leaves sampling noise."""
    truth = torch.tensor([1.0, 1.0, 1.0])
    samples = drawn(20_000, 2 * truth, truth)
    for one in judge(samples, [2.0, 2.0, 2.0]):
        assert one.ece_before > 0.05
        assert one.ece_after < 0.02
        assert one.brier_after < one.brier_before
        assert one.predicted_after == pytest.approx(one.observed, abs=0.02)
        assert one.auc is not None and one.auc > 0.6
    assert [one.ece_after for one in judge(samples, [1.0] * 3)] == [one.ece_before for one in judge(samples, [1.0] * 3)]


def test_saying_the_average_is_no_gain() -> None:
    """A temperature that flattens all leaves no calibration error; the Brier score is worse, and says so."""
    truth = torch.tensor([1e-3])
    samples = drawn(20_000, truth, truth)
    (flat,) = judge(samples, [1e6])
    assert flat.ece_after < flat.ece_before + 0.01
    assert flat.brier_after > 1.05 * flat.brier_before


def test_ranking_against_every_pair() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randint(0, 5, (60,), generator=generator).double()
    outcomes = torch.randint(0, 2, (60,), generator=generator).float()
    pairs = [(k, n) for k in scores[outcomes > 0].tolist() for n in scores[outcomes == 0].tolist()]
    expected = sum((k > n) + 0.5 * (k == n) for k, n in pairs) / len(pairs)
    assert ranking(scores, outcomes) == pytest.approx(expected)
    assert ranking(scores, torch.ones(60)) is None
