"""Where an answer ends does not depend on how many tokens a verify step accepts: SGLang's own request and check."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import Req

from sglang_dspark.serving.stop_conditions import around_update_finish_state


@pytest.fixture(autouse=True)
def algorithm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What runs, as SGLang says it."""
    spec = SimpleNamespace(speculative_algorithm="DSPARK")
    monkeypatch.setattr("sglang.srt.runtime_context.get_spec", lambda: spec)
    return spec


CHECK = getattr(Req.update_finish_state, "__wrapped__", Req.update_finish_state)
EOS = 9
LETTERS = "abcdefgh.$"  # token 9 is the end of the sequence


class Letters:
    """A tokenizer whose tokens are letters."""

    eos_token_id = EOS
    additional_stop_token_ids = None

    def decode(self, ids: Any) -> str:
        return "".join(LETTERS[token] for token in ids)


def request(stop: tuple[str, ...] = (), regex: tuple[str, ...] = (), new_tokens: int = 100, **changes: Any) -> Req:
    """A request as SGLang keeps it, with all that the check reads."""
    req = object.__new__(Req)
    sampling = {
        "stop_strs": list(stop),
        "stop_str_max_len": max(map(len, stop), default=0),
        "stop_regex_strs": list(regex),
        "stop_regex_max_len": 6 if regex else 0,
        "stop_token_ids": None,
        "max_new_tokens": new_tokens,
        "ignore_eos": False,
    }
    fields = {
        "rid": "x",
        "output_ids": array("q"),
        "sampling_params": SimpleNamespace(**sampling),
        "finished_reason": None,
        "finished_len": None,
        "to_finish": None,
        "tokenizer": Letters(),
        "eos_token_ids": {EOS},
        "vocab_size": len(LETTERS),
        "decoded_text": "",
        "grammar": None,
    }
    for name, value in {**fields, **changes}.items():
        setattr(req, name, value)
    return req


def answer(req: Req, text: str, widths: list[int]) -> tuple[str, dict[str, Any] | None]:
    """The text and the reason of an answer whose tokens arrive in steps of those widths."""
    ids, start = [LETTERS.index(letter) for letter in text], 0
    for width in widths:
        new = ids[start : start + width]
        start += width
        req.output_ids.extend(new)
        around_update_finish_state(CHECK, req, len(new))
        if req.finished_reason is not None:
            break
    end = len(req.output_ids) if req.finished_len is None else req.finished_len
    reason = None if req.finished_reason is None else req.finished_reason.to_json()
    return "".join(LETTERS[token] for token in req.output_ids[:end]), reason


@pytest.mark.parametrize(
    ("asked", "text", "expected", "matched"),
    [
        ({"stop": ("gh", "b")}, "abcdgh", "ab", "b"),
        ({"stop": ("cd",)}, "ab$cd", "ab$", EOS),
        ({"stop": ("gh",), "regex": ("b.d",)}, "abcdgh", "abcd", "b.d"),
        ({"stop": ("cd", "abc")}, "abcd", "abc", "abc"),
    ],
    ids=["the later in the list", "the end of the sequence", "a regex", "overlapping"],
)
def test_the_first_condition_ends_the_answer(
    asked: dict[str, Any], text: str, expected: str, matched: str | int
) -> None:
    """SGLang's own check takes stop strings first, in the order of the list."""
    for widths in ([1] * len(text), [len(text)]):
        found, reason = answer(request(**asked), text, widths)
        assert (found, reason["matched"]) == (expected, matched)


def test_any_widths_end_where_single_tokens_do() -> None:
    """2,000 answers of two or three stop strings, a regex now and then, cut into steps at random."""
    draw = random.Random(3)
    ends: set[str] = set()
    for _ in range(2000):
        strings = ["".join(draw.choices("abcdef", k=draw.randint(1, 3))) for _ in range(draw.randint(2, 3))]
        asked = {
            "stop": tuple(strings),
            "regex": ("b.c",) if draw.random() < 0.3 else (),
            "new_tokens": draw.randint(6, 30),
        }
        text = "".join(draw.choices("abcdefgh$", (4, 4, 4, 4, 4, 4, 4, 4, 1), k=30))
        widths: list[int] = []
        while sum(widths) < len(text):
            widths.append(draw.randint(1, 8))
        expected = answer(request(**asked), text, [1] * len(text))
        assert answer(request(**asked), text, widths) == expected
        ends.add(type(expected[1]["matched"]).__name__ if "matched" in expected[1] else expected[1]["type"])
    assert ends == {"str", "int", "length"}, "not every kind of end came up"


def test_a_grammar_that_is_complete_says_nothing_about_a_part_of_the_step() -> None:
    """The grammar has already seen every accepted token when the check runs."""
    grammar = SimpleNamespace(is_terminated=lambda: True)
    found, reason = answer(request(stop=("cd",), grammar=grammar), "abcd", [4])
    assert found == "abcd" and reason["matched"] == "cd"


ABORT = SimpleNamespace(to_json=lambda: {"type": "abort"})


@pytest.mark.parametrize(
    ("asked", "text", "expected"),
    [
        ({"stop": ("b", "c")}, "abcd", "ab"),
        ({"new_tokens": 3}, "abcd", "abc"),
        ({}, "ab$cd", "ab$"),
        ({"stop": ("h",)}, "abcd", "abcd"),
    ],
    ids=["stop string", "length", "end of the sequence", "no end"],
)
def test_an_abort_returns_nothing_behind_the_answer_s_end(asked: dict[str, Any], text: str, expected: str) -> None:
    """Its reason stays, and what came back is a beginning of the answer that it cut off, or all of it."""
    found, reason = answer(request(**asked, to_finish=ABORT), text, [len(text)])
    assert (found, reason) == (expected, {"type": "abort"})


def test_other_algorithms_are_left_as_they_are(algorithm: SimpleNamespace) -> None:
    algorithm.speculative_algorithm = "EAGLE"
    found, reason = answer(request(stop=("gh", "b")), "abcdgh", [6])
    assert (found, reason["matched"]) == ("abcdgh", "gh"), "SGLang's check has changed: is the hook still needed?"
