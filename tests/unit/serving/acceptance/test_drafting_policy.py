"""The server's setting and a request's: what is understood, and what is refused with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_dspark.serving.acceptance import drafting_policy
from sglang_dspark.serving.acceptance.drafting_policy import DraftingPolicy, from_environment, parse


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("always", DraftingPolicy()),
        (" auto ", DraftingPolicy(mode="auto")),
        ("never", DraftingPolicy(mode="never")),
        # Numbers are only of use in auto, so that is what they mean.
        ('{"stop_below": 1.5, "resume_above": 2}', DraftingPolicy(mode="auto", stop_below=1.5, resume_above=2)),
        ('{"mode": "always", "window": 4}', DraftingPolicy(window=4)),
    ],
)
def test_what_is_understood(text: str, policy: DraftingPolicy) -> None:
    assert parse(text) == policy


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sometimes", "'sometimes'; use one of always, auto, never"),
        ("{auto}", "not a JSON object"),
        ('{"stop": 1.5}', "unknown keys stop; known are mode, stop_below"),
        ('{"window": 0}', "window=0"),
        ('{"pause": 1.5}', "pause=1.5"),
        ('{"probe": true}', "probe=True"),
        ('{"stop_below": 0.5}', "stop_below=0.5"),
        ('{"stop_below": "high"}', "stop_below='high'"),
        ('{"resume_above": NaN}', "resume_above=nan"),
        # It would stop and resume in turn.
        ('{"stop_below": 2, "resume_above": 1.5}', "resume_above=1.5 under stop_below=2"),
        ('{"pause": 600}', "longest_pause=512 under pause=600"),
    ],
)
def test_what_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse(text)
    assert named in str(refusal.value)


def test_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drafting_policy.VARIABLE, "nver")
    with pytest.raises(ValueError, match="SGLANG_DSPARK_DRAFTING=nver: .*use one of"):
        from_environment()


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_the_variable_requests_draft(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv(drafting_policy.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(drafting_policy.VARIABLE, value)
    assert from_environment() == DraftingPolicy(mode="always")


@pytest.mark.parametrize("custom", [None, {}, {"other": 1}, "text", {"dspark_drafting": "never"}])
def test_requests_that_are_served(custom: Any) -> None:
    assert drafting_policy.request_refusal(SimpleNamespace(custom_params=custom)) is None


@pytest.mark.parametrize("mode", ["off", "", 0, ["never"], {}])
def test_requests_that_are_refused(mode: Any) -> None:
    """A mistyped wish would be served as none."""
    reason = drafting_policy.request_refusal(SimpleNamespace(custom_params={"dspark_drafting": mode}))
    assert (
        reason is not None and f"custom_params.dspark_drafting={mode!r}" in reason and "always, auto, never" in reason
    )
