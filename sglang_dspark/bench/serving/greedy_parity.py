"""Greedy answers of a server with speculation against one without, before either is timed for what it says.

Speculation must not change a greedy answer. In float32 it does not, to the last token. In a half type two logits may be
equal but for rounding, and a step that carries a window of tokens may round the other way than one that carries one:
then the answers part at a tie. So the server without speculation is asked for the two likeliest tokens of each
position too, and an answer that parts from it passes only where the other token was within so much of the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_dspark.server_http import request

# Two bf16 steps of a logit between 16 and 32.
HALF_TYPE_TIE = 0.25
# Short, of several kinds: what is compared is servers, not data.
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Write a list of five fruits:\n1.",
    "Water boils at a temperature of",
    '{"name": "example", "version": ',
    "Once upon a time, in a small village by the sea,",
    "The derivative of x squared is",
    "SELECT name, age FROM people WHERE",
)

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class ParityFailed(RuntimeError):
    """A server with speculation answers something else than the one without."""


@dataclass(frozen=True)
class Answer:
    """A greedy answer: its tokens, and of each position the two likeliest tokens with their logprobs, if asked for."""

    tokens: tuple[int, ...]
    likeliest: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True)
class Agreement:
    """How many answers are equal to the last token, and how many part at a tie."""

    equal: int
    ties: int

    def __str__(self) -> str:
        total = self.equal + self.ties
        parted = f", {self.ties} part at a tie" if self.ties else ""
        return f"{self.equal} of {total} greedy answers equal{parted}"


def asker(url: str, timeout_s: float = 600.0) -> Ask:
    """Asks the server at a URL for one answer; raises `ServerError` with the server's own words."""
    return lambda body: dict(request(f"{url}/generate", body, timeout_s))


def answers(ask: Ask, texts: Sequence[str], new_tokens: int, with_likeliest: bool) -> list[Answer]:
    """One answer a text, one after another: a batch of its own each, so that only speculation differs."""
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    extra = {"return_logprob": True, "top_logprobs_num": 2} if with_likeliest else {}
    found = []
    for text in texts:
        answer = ask({"text": text, "sampling_params": sampling, **extra})
        tops = answer["meta_info"]["output_top_logprobs"] if with_likeliest else ()
        likeliest = tuple({int(token): float(logprob) for logprob, token, *_ in top} for top in tops)
        found.append(Answer(tuple(answer["output_ids"]), likeliest))
    return found


def compare(texts: Sequence[str], plain: Sequence[Answer], speculative: Sequence[Answer], tie: float) -> Agreement:
    """How the answers agree.

    Args:
        texts: what was asked.
        plain: the answers without speculation, with their likeliest tokens.
        speculative: the answers with it.
        tie: how far below the likeliest token's logprob another may be and still count as equally likely.

    Raises:
        ParityFailed: an answer differs for another reason than a tie; all of them are listed.
    """
    equal = ties = 0
    problems = []
    for text, first, second in zip(texts, plain, speculative, strict=True):
        if first.tokens == second.tokens:
            equal += 1
        elif (problem := _parting(first, second, tie)) is None:
            ties += 1
        else:
            problems.append(f"{text[:40]!r}: {problem}")
    if problems:
        raise ParityFailed(
            f"{len(problems)} of {len(texts)} greedy answers with speculation differ from those without:\n  "
            + "\n  ".join(problems)
        )
    return Agreement(equal, ties)


def _parting(first: Answer, second: Answer, tie: float) -> str | None:
    """Where the answers part and why that is no tie; None when it is one."""
    pairs = zip(first.tokens, second.tokens, strict=False)
    at = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return f"{len(first.tokens)} tokens without speculation, {len(second.tokens)} with it"
    likeliest, asked, found = first.likeliest[at], first.tokens[at], second.tokens[at]
    if found in likeliest and likeliest[asked] - likeliest[found] <= tie:
        return None
    gap = f"{likeliest[asked] - likeliest[found]:.3g} below" if found in likeliest else "neither likeliest nor second"
    return f"token {at} is {found}, expected {asked} ({gap}; a tie is at most {tie:g})"
