"""What a decode result says, in each of SGLang's verify modes, with drafts and without."""

from __future__ import annotations

import pytest

from sglang_dspark.serving.acceptance.rounds import Rounds, StepFacts, reached, read_step
from tests.unit.serving.acceptance.steps import result

GAMMA = 3


def read(accepted, caps=None, facts=None, counted=None, compact=False) -> Rounds:
    counted = [True] * len(accepted) if counted is None else counted
    return read_step(result(accepted, caps), counted, facts or StepFacts(), GAMMA, compact=compact)


def test_static_verify_proposes_a_whole_block_each_round() -> None:
    assert read([0, 3]) == Rounds([0, 1], [0, 3], [3, 3], [True, True], verified_tokens=8)


def test_requests_that_had_ended_do_not_count() -> None:
    """Overlap scheduling runs them once more; counting that round would differ from every reference loop."""
    assert read([2, 1, 3], counted=[True, False, True]) == Rounds([0, 2], [2, 3], [3, 3], [True, True], 8)


def test_compact_verify_proposes_and_pays_up_to_the_cap() -> None:
    """A cap counts the anchor: a cap of 1 proposes nothing, and the request still drafted."""
    assert read([0, 1], caps=[1, 3], compact=True) == Rounds([0, 1], [0, 1], [0, 2], [True, True], 4)


def test_capped_acceptance_pays_for_whole_blocks() -> None:
    """cap-accept caps what is accepted, not what is verified."""
    assert read([0, 1], caps=[1, 3]).verified_tokens == 8


def test_a_step_without_the_draft_proposes_nothing() -> None:
    rounds = read([0, 0], facts=StepFacts(drafted=False, stopped=[True, True]))
    assert rounds == Rounds([0, 1], [0, 0], [0, 0], [False, False], 8)


def test_a_placeholder_that_was_right_was_a_proposal() -> None:
    """Otherwise more would be accepted than proposed."""
    assert read([1], facts=StepFacts(drafted=False)).proposed == [1]


def test_a_stopped_request_beside_others_is_left_out_of_compact_verify_only() -> None:
    """Where nothing caps it (static, or past the captured graphs) its drafts were verified, and count."""
    facts = StepFacts(stopped=[True, False])
    assert read([0, 2], caps=[1, 4], facts=facts, compact=True) == Rounds([0, 1], [0, 2], [0, 3], [False, True], 5)
    assert read([0, 2], facts=facts) == Rounds([0, 1], [0, 2], [3, 3], [True, True], 8)


@pytest.mark.parametrize(
    ("histogram", "expected"),
    [([], [0, 0, 0]), ([5], [0, 0, 0]), ([1, 2], [2, 0, 0]), ([4, 1, 0, 2], [3, 2, 2])],
)
def test_positions_reached(histogram: list[int], expected: list[int]) -> None:
    """SGLang's histograms end at the largest count seen."""
    assert reached(histogram, GAMMA) == expected
