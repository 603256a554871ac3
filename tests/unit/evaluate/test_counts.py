"""Accepted lengths and positions from counted rounds: the numbers that everything else reports."""

from __future__ import annotations

import pytest

from sglang_dspark.evaluate.counts import Counts


def test_figures_by_hand() -> None:
    """Four rounds of three proposals that kept 0, 1, 3, 3: an off-by-one in a position would move every figure."""
    counts = Counts.of_rounds([0, 1, 3, 3], gamma=3)
    assert counts.kept == (1, 1, 0, 2)
    assert counts.accepted_length == pytest.approx((1 + 2 + 4 + 4) / 4)
    assert counts.survival == pytest.approx([3 / 4, 2 / 4, 2 / 4])
    # Of the 3 rounds that kept the first, 2 kept the second, and both of these the third.
    assert counts.acceptance == pytest.approx([3 / 4, 2 / 3, 1.0])
    assert counts.verified_length == 4 and not counts.trimmed


def test_the_accepted_length_is_one_and_the_survivals() -> None:
    """Two ways to the same figure."""
    counts = Counts.of_rounds([5, 0, 2, 7, 7, 1, 0, 3], gamma=7)
    assert counts.accepted_length == pytest.approx(1 + sum(counts.survival))


def test_a_position_that_no_round_reached_has_no_acceptance() -> None:
    """0 would say that the draft fails there, which nothing shows."""
    counts = Counts.of_rounds([1, 0], gamma=3)
    assert counts.acceptance == [0.5, 0.0, None]


def test_without_rounds_there_are_no_figures() -> None:
    """An answer of one token has no round."""
    counts = Counts.of_histogram([], gamma=2)
    assert counts.rounds == 0
    assert counts.accepted_length is None and counts.verified_length is None
    assert counts.survival == [None, None] and counts.acceptance == [None, None]


def test_sums() -> None:
    """Rates of several answers are those of their rounds together, not the mean of the answers' rates."""
    total = Counts.of_rounds([3], gamma=3) + Counts.of_rounds([0, 0, 0], gamma=3)
    assert total.accepted_length == pytest.approx(1.75)
    assert total.verified == (4, 4, 4)


def test_servers_histograms_end_early() -> None:
    """SGLang's list ends with the largest count seen."""
    assert Counts.of_histogram([4, 2], gamma=7).kept == (4, 2, 0, 0, 0, 0, 0, 0)


def test_trimmed_rounds_are_told() -> None:
    """Of four rounds one verified 2 tokens, so the anchor and one proposal, one verified all 4, and two had no cap."""
    counts = Counts.of_histogram([2, 1, 0, 1], gamma=3, caps=[0, 0, 1, 0, 1])
    assert counts.verified == (4, 3, 3)
    assert counts.trimmed
    assert counts.verified_length == pytest.approx((2 + 4 + 4 + 4) / 4)
    assert not Counts.of_histogram([1], gamma=3, caps=[0, 0, 0, 0, 1]).trimmed
    # Rounds that drafted nothing.
    assert Counts.of_histogram([2], gamma=3, caps=[0, 2]).verified == (0, 0, 0)


@pytest.mark.parametrize("kept", [[4], [-1]])
def test_impossible_rounds_are_refused(kept: list[int]) -> None:
    with pytest.raises(ValueError, match="0 to 3 proposals"):
        Counts.of_rounds(kept, gamma=3)
    with pytest.raises(ValueError, match="at most 1 proposals"):
        Counts.of_histogram([0, 0, 1], gamma=1)
