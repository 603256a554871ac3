"""Counts of many steps are the sums of their rounds, and each is taken once."""

from __future__ import annotations

import random

from sglang_dspark.serving.acceptance.counters import Counters, Counts
from sglang_dspark.serving.acceptance.rounds import Rounds

GAMMA = 4
NOTHING = Counts(0, 0, [0] * GAMMA, [0] * GAMMA, 0, 0, 0, {})


def test_counts_by_position_are_sums_over_rounds() -> None:
    generator, counters = random.Random(0), Counters(GAMMA)
    accepted, proposed = [], []
    for _ in range(50):
        width = [generator.randint(0, GAMMA) for _ in range(5)]
        right = [generator.randint(0, most) for most in width]
        counters.add(Rounds(list(range(5)), right, width, [True] * 5, sum(width) + 5), draft_ran=True)
        accepted += right
        proposed += width
    counts = counters.take()
    for index, place in enumerate(range(1, GAMMA + 1)):
        assert counts.accepted[index] == sum(number >= place for number in accepted)
        assert counts.proposed[index] == sum(number >= place for number in proposed)
    assert counts.drafted_rounds == 250 and counts.verified_tokens == 250 + sum(proposed)
    assert counts.steps_with_draft == 50 and counts.steps_without_draft == 0


def test_rounds_without_drafts_and_changes_are_counted_apart() -> None:
    counters = Counters(GAMMA)
    counters.add(Rounds([0, 1], [0, 2], [0, 4], [False, True], 6), draft_ran=True)
    counters.add(Rounds([0, 1], [0, 0], [0, 0], [False, False], 2), draft_ran=False)
    counters.note_change("stopped")
    counters.note_change("stopped")
    assert counters.take() == Counts(1, 3, [1, 1, 1, 1], [1, 1, 0, 0], 8, 1, 1, {"stopped": 2})


def test_what_was_taken_is_not_taken_again() -> None:
    counters = Counters(GAMMA)
    counters.add(Rounds([0], [1], [4], [True], 5), draft_ran=True)
    counters.take()
    assert counters.take() == NOTHING
