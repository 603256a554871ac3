"""The offline engine, as a user's own script starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dspark.demo import DemoPair
from tests.e2e.serving import Answer, accepted_length, ask_engine

pytestmark = pytest.mark.e2e


def test_offline_engine(pair: DemoPair, texts: list[str], plain_answers: list[Answer], tmp_path: Path) -> None:
    """64 prompts in one call: the same tokens as without speculation."""
    found = ask_engine(pair, texts, tmp_path)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in plain_answers]
    assert accepted_length(found) > 2
