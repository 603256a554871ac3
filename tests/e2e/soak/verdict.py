"""What is wrong with a reply, given what the server without speculation answered."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from tests.e2e.features import SCHEMA
from tests.e2e.soak.clients import Reply
from tests.e2e.soak.workload import REGEX, STOPS, Question

# Batches of other shapes sum in another order.
LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Expected:
    """The greedy answer without speculation."""

    tokens: list[int]
    text: str
    finish: dict[str, Any]
    logprobs: list[float]
    # The least that any chosen token led the second best by, in log probability.
    lead: float


def complaints(reply: Reply, question: Question, expected: Expected, vocab_size: int) -> list[str]:
    """Everything wrong with a reply; empty where all is as it must be."""
    if reply.outcome == "failed":
        return [f"failed: {reply.error}"]
    if reply.outcome == "disconnected" or (reply.outcome == "aborted" and reply.error):
        return []
    if reply.outcome == "aborted" and reply.plan.fate != "abort":
        return [f"aborted, though nobody asked: {reply.meta.get('finish_reason', reply.text)}"]
    found = _greedy(reply, expected) if reply.plan.greedy else _sampled(reply, question, vocab_size)
    if any(not later.startswith(earlier) for earlier, later in zip(reply.pieces, reply.pieces[1:], strict=False)):
        found.append("a piece of the stream took text back")
    return found


def _greedy(reply: Reply, expected: Expected) -> list[str]:
    found = []
    if reply.outcome == "aborted":
        tokens = reply.tokens or []
        if tokens != expected.tokens[: len(tokens)]:
            found.append(f"aborted after tokens {tokens}, not a beginning of {expected.tokens}")
        return found
    if reply.tokens is not None and reply.tokens != expected.tokens:
        found.append(f"tokens {reply.tokens}, expected {expected.tokens}")
    if reply.text != expected.text:
        found.append(f"text {reply.text!r}, expected {expected.text!r}")
    if "finish_reason" in reply.meta and reply.meta["finish_reason"] != expected.finish:
        found.append(f"finished by {reply.meta['finish_reason']}, expected {expected.finish}")
    if reply.plan.top_logprobs is not None:
        logprobs = [logprob for logprob, *_ in reply.meta["output_token_logprobs"]]
        worst = max((abs(a - b) for a, b in zip(logprobs, expected.logprobs, strict=False)), default=0.0)
        if len(logprobs) != len(expected.logprobs) or not worst <= LOGPROB_TOLERANCE:
            found.append(f"{len(logprobs)} log probabilities, off by {worst}, expected {len(expected.logprobs)}")
    return found


def _sampled(reply: Reply, question: Question, vocab_size: int) -> list[str]:
    """Nothing says what a sample must be, but much says what it cannot be."""
    found = []
    tokens = reply.tokens or []
    if any(not 0 <= token < vocab_size for token in tokens):
        found.append(f"tokens outside the vocabulary: {tokens}")
    if len(tokens) > question.new_tokens:
        found.append(f"{len(tokens)} tokens, asked for {question.new_tokens}")
    if reply.plan.top_logprobs is not None:
        logprobs = [logprob for logprob, *_ in reply.meta["output_token_logprobs"]]
        if len(logprobs) != len(tokens) or not all(math.isfinite(each) and each <= 1e-6 for each in logprobs):
            found.append(f"log probabilities {logprobs} of tokens {tokens}")
    if reply.outcome == "answered" and reply.meta.get("finish_reason", {}).get("type") == "stop":
        found += _form(reply.text, question)
    return found


def _form(text: str, question: Question) -> list[str]:
    if question.kind == "regex" and not re.fullmatch(REGEX, text):
        return [f"{text!r} does not match {REGEX}"]
    if question.kind == "stop" and any(stop in text for stop in STOPS):
        return [f"{text!r} holds a stop string"]
    if question.kind == "json_schema":
        try:
            fields = json.loads(text)
        except ValueError:
            return [f"{text!r} is no JSON"]
        if set(fields) != set(SCHEMA["required"]) or fields["colour"] not in ("red", "green", "blue"):
            return [f"{text!r} does not fit the schema"]
    return []
