"""Counts by position in an answer, from the histograms SGLang sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt import runtime_context

from sglang_dspark.serving.acceptance.meta_info import around_calculate, by_position

GAMMA = 3


def test_rounds_without_a_cap_proposed_whole_blocks() -> None:
    counts = by_position(6, [1, 2, 0, 3], [], GAMMA)
    assert counts == {"spec_accepted_by_position": [5, 3, 3], "spec_proposed_by_position": [6, 6, 6]}


def test_caps_count_the_anchor() -> None:
    """Two rounds capped at 1 (nothing proposed), one at 3 (two proposed), and three without a cap."""
    counts = by_position(6, [4, 2], [0, 2, 0, 1], GAMMA)
    assert counts == {"spec_accepted_by_position": [2, 0, 0], "spec_proposed_by_position": [4, 4, 3]}


def calculate(monkeypatch: pytest.MonkeyPatch, algorithm: str, rounds: int) -> dict[str, Any]:
    spec = SimpleNamespace(speculative_algorithm=algorithm, speculative_num_draft_tokens=GAMMA + 1)
    monkeypatch.setattr(runtime_context, "get_spec", lambda: spec)

    def original(manager: Any, meta_info: dict[str, Any], received: Any, index: int) -> None:
        meta_info["spec_verify_ct"] = rounds

    received = SimpleNamespace(spec_correct_drafts_histogram=[[], [2, 1]], spec_cap_lens_histogram=[[], [0, 1]])
    meta: dict[str, Any] = {}
    around_calculate(original, None, meta, received, 1)
    return meta


def test_they_stand_beside_sglang_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calculate(monkeypatch, "DSPARK", 3) == {
        "spec_verify_ct": 3,
        "spec_accepted_by_position": [1, 0, 0],
        "spec_proposed_by_position": [2, 2, 2],
    }


@pytest.mark.parametrize(("algorithm", "rounds"), [("EAGLE", 3), ("DSPARK", 0)])
def test_other_algorithms_and_answers_without_a_round(monkeypatch, algorithm: str, rounds: int) -> None:
    assert calculate(monkeypatch, algorithm, rounds) == {"spec_verify_ct": rounds}
