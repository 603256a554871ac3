"""The loop over prompts: everything is asked once, counted where it belongs, and a failure names its prompt."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sglang_dspark.evaluate.acceptance import AskError, measure
from sglang_dspark.evaluate.answer import Answer
from sglang_dspark.evaluate.counts import Counts
from sglang_dspark.evaluate.prompts import Prompt, PromptSet


def prompt_set(name: str, *texts: str) -> PromptSet:
    return PromptSet(
        name, f"{name}.jsonl", "prompt", tuple(Prompt(t, f"{name}.jsonl:{i}") for i, t in enumerate(texts, 1))
    )


class Judge:
    """Keeps as many of three proposals as the prompt says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.under_way = self.most = 0
        self.lock = threading.Lock()

    def ask(self, text: str) -> Answer:
        with self.lock:
            self.asked.append(text)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        time.sleep(0.01)
        with self.lock:
            self.under_way -= 1
        if text == "bad":
            raise RuntimeError("prompt too long")
        return Answer(Counts.of_rounds([int(text)], gamma=3), prompt_tokens=2, new_tokens=10)

    def describe(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("at_once", [1, 4])
def test_every_prompt_is_asked_once(at_once: int) -> None:
    """The order in which answers come back moves nothing."""
    judge, seen = Judge(), []
    sets = [prompt_set("a", *"0123"), prompt_set("b", "3", "3")]
    first, second = measure(judge, sets, at_once=at_once, progress=lambda *told: seen.append(told))
    assert sorted(judge.asked) == sorted("012333")
    assert first.counts.kept == (1, 1, 1, 1) and second.counts.kept == (0, 0, 0, 2)
    assert (first.prompts, first.prompt_tokens, first.new_tokens) == (4, 8, 40)
    assert seen == [*(("a", n, 4) for n in (1, 2, 3, 4)), ("b", 1, 2), ("b", 2, 2)]
    assert judge.most <= at_once


def test_a_failure_names_the_prompt_and_ends_the_run() -> None:
    """Left out silently, the prompts that a server refuses would bend the figure."""
    judge = Judge()
    with pytest.raises(AskError, match=r"a\.jsonl:2 had no answer: prompt too long"):
        measure(judge, [prompt_set("a", "0", "bad", *"1" * 50)], progress=lambda *told: None)
    assert len(judge.asked) < 10
