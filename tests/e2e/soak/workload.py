"""What the soak asks: a bounded set of questions, and for every request how it is put and how it ends.

The answers at temperature 0 are known for every question from a server without speculation, so any number of requests
can draw from the set. A request is a function of the seed and its number: a failure can be asked again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from sglang_dspark.demo.code_prompts import code_prompts
from tests.e2e.features import SCHEMA

REGEX = "(yes|no), (sir|madam)"
STOPS = ("self", "\n")
SHARED_TOKENS = 200
# How many questions of a hundred have a prompt of about so many tokens.
LENGTHS = {1: 8, 2: 5, 12: 36, 40: 22, 150: 9, 400: 2, 1000: 1}
NEW_TOKENS = (1, 2, 8, 16, 24, 32, 48, 96)
# The questions that end with the context cost as much as a hundred others.
LAST, LAST_SHARE = 4, 0.015
GREEDY_SHARE, ABORTED_SHARE, DISCONNECTED_SHARE = 0.75, 0.07, 0.07
# A request is broken off within so many seconds: some of them wait in the queue, some run.
PATIENCE_SECONDS = 4.0
TEMPERATURES = (0.3, 0.7, 1.0, 1.5)


@dataclass(frozen=True)
class Question:
    """A prompt and what its answer must look like; `kind` is free, stop, json_schema or regex."""

    ids: tuple[int, ...]
    kind: str
    new_tokens: int

    @property
    def sampling(self) -> dict[str, Any]:
        constraint = {
            "free": {},
            "stop": {"stop": list(STOPS)},
            "json_schema": {"json_schema": json.dumps(SCHEMA)},
            "regex": {"regex": REGEX},
        }
        return {"max_new_tokens": self.new_tokens, **constraint[self.kind]}


@dataclass(frozen=True)
class Plan:
    """One request: the question, how it is asked, and how it ends."""

    number: int
    question: int
    route: str  # generate, stream, completions
    sampling: dict[str, Any] = field(default_factory=dict)  # beside the question's own; empty is greedy
    top_logprobs: int | None = None  # None asks for no log probabilities
    fate: str = "finish"  # finish, abort, disconnect
    patience: float = 0.0  # seconds until an abort or a disconnection

    @property
    def greedy(self) -> bool:
        return not self.sampling


def questions(tokenizer: Tokenizer, count: int, context: int) -> list[Question]:
    """`count` different ones, always the same; the last `LAST` end with the context.

    Args:
        tokenizer: of the served model.
        count: at least 20.
        context: tokens the model has positions for.
    """
    draw = random.Random(7)
    text = tokenizer.encode("\n".join(code_prompts(176))).ids
    source = text * (1 + 2 * context // len(text))
    shared = [source[start : start + SHARED_TOKENS] for start in (100, 900)]
    found: dict[Question, None] = {}
    while len(found) < count - LAST:
        ids = _prompt(draw, source, shared)
        kind = draw.choices(("free", "stop", "json_schema", "regex"), (60, 14, 13, 13))[0]
        found[Question(tuple(ids), kind, draw.choice(NEW_TOKENS) if kind == "free" else 40)] = None
    for new_tokens in (160, 48, 9, 7):  # SGLang keeps room for 7: it takes no longer prompt
        start = draw.randrange(100)
        found[Question(tuple(source[start : start + context - new_tokens]), "free", new_tokens)] = None
    return list(found)


def _prompt(draw: random.Random, source: Sequence[int], shared: Sequence[Sequence[int]]) -> list[int]:
    start = draw.randrange(len(source) // 2)
    if draw.random() < 0.17:
        return [*draw.choice(shared), *source[start : start + draw.randint(1, 60)]]
    length = draw.choices(list(LENGTHS), list(LENGTHS.values()))[0]
    if length > 2:
        length = round(length * draw.uniform(0.7, 1.3))
    return list(source[start : start + length])


def plan(seed: int, number: int, questions: Sequence[Question]) -> Plan:
    """The request of that number."""
    draw = random.Random(f"{seed}/{number}")
    last = draw.random() < LAST_SHARE
    question = len(questions) - 1 - draw.randrange(LAST) if last else draw.randrange(len(questions) - LAST)
    route = draw.choices(("generate", "stream", "completions"), (45, 40, 15))[0]
    if questions[question].kind in ("json_schema", "regex") and route == "completions":
        route = "generate"  # that route has other names for these
    sampling: dict[str, Any] = {}
    if draw.random() >= GREEDY_SHARE:
        sampling = {"temperature": draw.choice(TEMPERATURES)}
        if draw.random() < 0.4:
            sampling |= draw.choice(({"top_p": 0.9}, {"top_k": 20}, {"top_p": 0.95, "top_k": 50}))
    top_logprobs = draw.choice((0, 2)) if route != "completions" and draw.random() < 0.25 else None
    ends = (1 - ABORTED_SHARE - DISCONNECTED_SHARE, ABORTED_SHARE, DISCONNECTED_SHARE)
    fate = draw.choices(("finish", "abort", "disconnect"), ends)[0]
    return Plan(number, question, route, sampling, top_logprobs, fate, draw.uniform(0, PATIENCE_SECONDS))
