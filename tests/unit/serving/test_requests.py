"""Requests whose answer DSPARK would change are refused with the reason, and no others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt import runtime_context
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_dspark.serving.requests import around_validate_dflash_request, refusal


def params(**changes: object) -> SamplingParams:
    made = SamplingParams(**changes)
    made.normalize(SimpleNamespace())  # for a tokenizer: without one SGLang itself refuses min_new_tokens
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20},
        # Greedy takes the most probable token, which min_p never removes.
        {"temperature": 0, "min_p": 0.1},
        {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0},
    ],
)
def test_what_is_lossless_is_served(changes: dict[str, object]) -> None:
    assert refusal(params(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty=0.5"),
        ({"presence_penalty": -0.5}, "presence_penalty=-0.5"),
        ({"repetition_penalty": 1.1, "temperature": 0}, "repetition_penalty=1.1"),
        # A penalty of SGLang's, seen ignored: 13 tokens came where 20 were the least.
        ({"min_new_tokens": 4, "temperature": 0}, "min_new_tokens=4"),
        ({"min_p": 0.1, "temperature": 1.0}, "min_p=0.1"),
    ],
)
def test_what_is_not_is_refused_by_name(changes: dict[str, object], named: str) -> None:
    """Served, the answer would differ from the target's own without a word."""
    reason = refusal(params(**changes))
    assert named in reason and "without speculation" in reason


def test_all_penalties_are_named() -> None:
    reason = refusal(params(frequency_penalty=0.5, repetition_penalty=1.5))
    assert "frequency_penalty=0.5, repetition_penalty=1.5" in reason


@pytest.mark.parametrize(
    ("algorithm", "original", "expected"),
    [("DSPARK", None, "frequency_penalty"), ("DSPARK", "theirs", "theirs"), ("DFLASH", None, None)],
)
def test_sglang_s_reasons_come_first_and_dflash_is_its_own(monkeypatch, algorithm, original, expected) -> None:
    """DFLASH shares the function, and its requests are not ours to refuse."""
    monkeypatch.setattr(runtime_context, "get_spec", lambda: SimpleNamespace(speculative_algorithm=algorithm))
    request = SimpleNamespace(sampling_params=params(frequency_penalty=0.5))
    reason = around_validate_dflash_request(lambda req, overlap: original, request, True)
    assert (reason or "").startswith(expected or "") and bool(reason) == bool(expected)
