"""The soak's judge notices what it is there for, and its requests hold everything that the soak promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tokenizers import Tokenizer

from sglang_dspark.demo import trained
from tests.e2e.soak.clients import Reply, request_id
from tests.e2e.soak.verdict import Expected, complaints
from tests.e2e.soak.workload import LAST, Plan, Question, plan, questions

CONTEXT = trained.SPEC.max_position_embeddings
LENGTH = {"type": "length", "length": 3}
EXPECTED = Expected([5, 6, 7], "abc", LENGTH, [-0.5, -0.25, -1.0], 0.1)
FREE = Question((1, 2), "free", 3)
GREEDY, SAMPLED = Plan(0, 0, "generate"), Plan(1, 0, "generate", {"temperature": 1.0})
RIGHT = Reply(GREEDY, "answered", [5, 6, 7], "abc", {"finish_reason": LENGTH})


def judged(reply: Reply, question: Question = FREE) -> list[str]:
    return complaints(reply, question, EXPECTED, vocab_size=10)


def test_the_right_answer() -> None:
    assert judged(RIGHT) == []
    partial = dataclasses.replace(RIGHT, plan=dataclasses.replace(GREEDY, fate="abort"), outcome="aborted", tokens=[5])
    assert judged(partial) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokens": [5, 6, 8]}, "tokens"),
        ({"tokens": [5, 6]}, "tokens"),
        ({"text": "ab"}, "text"),
        ({"meta": {"finish_reason": {"type": "stop", "matched": 7}}}, "finished by"),
        ({"pieces": ("a", "b", "abc")}, "took text back"),
        ({"outcome": "failed", "error": "HTTP 500"}, "HTTP 500"),
        ({"outcome": "aborted"}, "nobody asked"),
        ({"outcome": "aborted", "plan": dataclasses.replace(GREEDY, fate="abort"), "tokens": [5, 7]}, "beginning"),
        (
            {
                "plan": dataclasses.replace(GREEDY, top_logprobs=0),
                "meta": {"finish_reason": LENGTH, "output_token_logprobs": [(-0.5, 5), (-0.26, 6), (-1.0, 7)]},
            },
            "log probabilities",
        ),
        ({"plan": SAMPLED, "tokens": [5, 10]}, "outside the vocabulary"),
        ({"plan": SAMPLED, "tokens": [5, 6, 7, 8]}, "asked for 3"),
    ],
)
def test_a_wrong_answer(changes: dict[str, Any], complaint: str) -> None:
    (found,) = judged(dataclasses.replace(RIGHT, **changes))
    assert complaint in found


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("regex", "yes, si"),
        ("stop", "my self"),
        ("json_schema", '{"colour": "pink", "ripe": true}'),
        ("json_schema", "{"),
    ],
)
def test_a_sample_of_the_wrong_form(kind: str, text: str) -> None:
    reply = Reply(SAMPLED, "answered", [5], text, {"finish_reason": {"type": "stop"}})
    assert len(judged(reply, Question((1,), kind, 3))) == 1


def test_the_requests_hold_everything() -> None:
    """Of the short soak: every route, kind, fate and length, and twice the same is the same."""
    tokenizer = trained.read(trained.SPEC).tokenizer
    assert isinstance(tokenizer, Tokenizer)
    asked = questions(tokenizer, 48, CONTEXT)
    assert len(set(asked)) == 48 and asked == questions(tokenizer, 48, CONTEXT)
    assert {len(question.ids) + question.new_tokens for question in asked[-LAST:]} == {CONTEXT}
    assert min(len(question.ids) for question in asked) == 1
    assert len({question.ids[:200] for question in asked if len(question.ids) > 200}) < sum(
        len(question.ids) > 200 for question in asked
    ), "no prompts with a shared beginning"
    assert {question.kind for question in asked} == {"free", "stop", "json_schema", "regex"}
    plans = [plan(2026, number, asked) for number in range(300)]
    assert plans == [plan(2026, number, asked) for number in range(300)]
    ends = {(each.fate, each.route) for each in plans}
    assert len(ends) == 9, "not every way to end on every route"
    assert any(each.question >= 48 - LAST and each.fate == "finish" and each.greedy for each in plans)
    assert len({request_id(each) for each in plans}) == 300
