"""What others published stands beside the same target only, and is what they published."""

from __future__ import annotations

import json

import pytest

from sglang_dspark.evaluate import published


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("Qwen/Qwen3-4B", "Qwen3-4B"),
        ("/models/qwen3-4b", "Qwen3-4B"),
        ("/models/Qwen3-4B/", "Qwen3-4B"),
        ("google/gemma-4-12b-it", "gemma-4-12B-it"),
        ("MiniMaxAI/MiniMax-M3", "MiniMax-M3"),
    ],
)
def test_the_same_target(model: str, target: str) -> None:
    row = published.for_target(model)
    assert row is not None and row.target == target


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-4B-Thinking", "Qwen3-32B", "/demo/target", "MiniMaxAI/MiniMax-M3.1-Flash"]
)
def test_another_target_has_nothing_beside_it(model: str) -> None:
    """A neighbour's figures would be read as this model's."""
    assert published.for_target(model) is None


@pytest.mark.parametrize(
    ("name", "canonical"),
    [("MATH-500", "math500"), ("arena-hard-v2", "arena-hard"), ("LCB", "livecodebench"), ("AIME_2025", "aime25")],
)
def test_spellings_of_a_data_set(name: str, canonical: str) -> None:
    assert published.canonical_set(name) == canonical
    assert published.canonical_set("own prompts") is None


def test_figures_of_the_paper() -> None:
    """Table 1: the means that its text gives (5.57 on math, 5.12 on code, 3.49 on chat for Qwen3-4B) follow from the
    figures, so none of them is mistyped beyond a hundredth."""
    row = published.for_target("Qwen3-4B")
    assert row is not None
    for sets, mean in (
        (("gsm8k", "math500", "aime25"), 5.57),
        (("mbpp", "humaneval", "livecodebench"), 5.12),
        (("mt-bench", "alpaca", "arena-hard"), 3.49),
    ):
        assert sum(row.accepted_length[name] for name in sets) / 3 == pytest.approx(mean, abs=0.005)


def test_every_figure_has_a_source_and_is_possible() -> None:
    table = json.loads(published.FILE.read_text())
    for figures in table["figures"]:
        assert figures["source"] and figures["conditions"]
        assert set(figures["accepted_length"]) <= set(table["sets"])
        assert all(1 < length <= figures["proposals"] + 1 for length in figures["accepted_length"].values())
    nine = [row for row in table["figures"] if "Table 1" in row["source"]]
    assert len(nine) == 4 and all(set(row["accepted_length"]) == set(table["sets"]) for row in nine)
