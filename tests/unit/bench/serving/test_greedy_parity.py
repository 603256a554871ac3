"""Greedy answers are compared token by token, and only a tie excuses a difference."""

from __future__ import annotations

import pytest

from sglang_dspark.bench.serving import greedy_parity
from sglang_dspark.bench.serving.greedy_parity import Agreement, Answer, ParityFailed, compare

TEXTS = ("a", "b")


def plain(*tokens: int, gap: float = 1.0) -> Answer:
    """An answer whose second choice is always the next token id, so far below."""
    return Answer(tokens, tuple({token: -0.5, token + 1: -0.5 - gap} for token in tokens))


def test_equal_answers():
    found = compare(TEXTS, [plain(1, 2), plain(3)], [Answer((1, 2)), Answer((3,))], tie=0.0)
    assert found == Agreement(equal=2, ties=0)
    assert str(found) == "2 of 2 greedy answers equal"


def test_an_answer_may_part_at_a_tie():
    """What follows a tie is another text, so the rest is not compared."""
    found = compare(TEXTS, [plain(1, 2, gap=0.2), plain(3)], [Answer((2, 9)), Answer((3,))], tie=0.25)
    assert found == Agreement(equal=1, ties=1)
    assert str(found) == "1 of 2 greedy answers equal, 1 part at a tie"


@pytest.mark.parametrize(
    ("first", "second", "tie", "message"),
    [
        (plain(1, 2, gap=0.3), Answer((2, 2)), 0.25, "token 0 is 2, expected 1 .0.3 below; a tie is at most 0.25"),
        (plain(1, 2, gap=0.0), Answer((1, 7)), 0.25, "token 1 is 7, expected 2 .neither likeliest nor second"),
        (plain(1, 2), Answer((1,)), 0.25, "2 tokens without speculation, 1 with it"),
        # In float32 nothing is a tie but equality.
        (plain(1, 2, gap=0.1), Answer((2, 2)), 0.0, "a tie is at most 0"),
    ],
)
def test_anything_else_fails_and_says_where(first, second, tie, message):
    with pytest.raises(ParityFailed, match=message):
        compare(("only",), [first], [second], tie)


def test_every_difference_is_listed():
    with pytest.raises(ParityFailed, match="2 of 2 greedy answers") as failure:
        compare(TEXTS, [plain(1), plain(3)], [Answer((5,)), Answer((7,))], tie=0.0)
    assert "'a'" in str(failure.value) and "'b'" in str(failure.value)


def test_the_likeliest_tokens_are_asked_for_only_without_speculation():
    asked = []

    def ask(body):
        asked.append(body)
        tops = [[[-0.1, 4, None], [-2.0, 5, None]]]
        return {"output_ids": [4], "meta_info": {"output_top_logprobs": tops}}

    (answer,) = greedy_parity.answers(ask, ["hello"], 3, with_likeliest=True)
    assert answer == Answer((4,), ({4: -0.1, 5: -2.0},))
    assert asked[0]["top_logprobs_num"] == 2 and asked[0]["sampling_params"]["max_new_tokens"] == 3
    greedy_parity.answers(ask, ["hello"], 3, with_likeliest=False)
    assert "return_logprob" not in asked[1]


def test_nobody_there_is_said():
    with pytest.raises(RuntimeError, match="asked http://127.0.0.1:9/generate.*is the server up"):
        greedy_parity.asker("http://127.0.0.1:9", timeout_s=2)({"text": "x"})
