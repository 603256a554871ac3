"""The sets that need no file: enough of them, all different, and none that the demo pair was trained on."""

from __future__ import annotations

import pytest

from sglang_dspark.evaluate.demo_prompts import COUNT, NAMES, demo_set
from sglang_dspark.train import corpus


@pytest.mark.parametrize("name", NAMES)
def test_many_and_different(name: str) -> None:
    found = demo_set(name)
    texts = [prompt.text for prompt in found.prompts]
    assert found.name == name and len(texts) == len(set(texts)) == COUNT
    assert all(text.strip() and not text.endswith(" ") for text in texts)
    assert demo_set(name) == found


def test_pieces_are_of_held_out_files() -> None:
    """A piece of a training file would be remembered, not guessed."""
    held_out = corpus.read_texts(held_out=True)
    assert all(any(prompt.text in text for text in held_out) for prompt in demo_set("demo-files").prompts[:20])
