"""When a request drafts: the server's setting, read once from SGLANG_DSPARK_DRAFTING, and a request's own wish.

The setting is a word, or a JSON object with `mode` and any of the numbers below. The plugin cannot add arguments to
SGLang's command line, so this is a variable like its others.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

VARIABLE = "SGLANG_DSPARK_DRAFTING"
# The key in a request's sampling_params.custom_params.
REQUEST_KEY = "dspark_drafting"

ALWAYS, AUTO, NEVER = "always", "auto", "never"
MODES = (ALWAYS, AUTO, NEVER)


@dataclass(frozen=True)
class DraftingPolicy:
    """When requests draft.

    Attributes:
        mode: `always`, `never`, or `auto`: each request stops where its drafts are not accepted.
        stop_below: a request stops when its mean accepted length over `window` rounds is lower.
        resume_above: it resumes when `probe` rounds of drafts reach at least this mean; not lower than `stop_below`,
            so that one value cannot both stop and resume.
        window: drafted rounds that are judged before it stops.
        pause: rounds without drafts before it tries again; doubled with every attempt that fails.
        longest_pause: where doubling ends.
        probe: drafted rounds of an attempt.
    """

    mode: str = ALWAYS
    stop_below: float = 1.3
    resume_above: float = 1.5
    window: int = 16
    pause: int = 64
    longest_pause: int = 512
    probe: int = 8

    def __post_init__(self) -> None:
        """Raise ValueError for what makes no sense, naming what was asked and what would do."""
        if self.mode not in MODES:
            raise ValueError(f"asked for drafting {self.mode!r}; use one of {', '.join(MODES)}")
        for name in ("window", "pause", "longest_pause", "probe"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"asked for {name}={value!r}; use a whole number of rounds, 1 or more")
        for name in ("stop_below", "resume_above"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
                raise ValueError(f"asked for {name}={value!r}; an accepted length is a number, 1 or more")
        if self.resume_above < self.stop_below:
            raise ValueError(
                f"asked for resume_above={self.resume_above} under stop_below={self.stop_below}: a request between "
                "them would stop and resume in turn; use resume_above >= stop_below"
            )
        if self.longest_pause < self.pause:
            raise ValueError(f"asked for longest_pause={self.longest_pause} under pause={self.pause}; use at least it")


def parse(text: str) -> DraftingPolicy:
    """The policy written as a word or as a JSON object.

    Raises:
        ValueError: with what was asked and what to write.
    """
    text = text.strip()
    if not text.startswith("{"):
        return DraftingPolicy(mode=text)
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not a JSON object: {error}") from error
    known = [field.name for field in dataclasses.fields(DraftingPolicy)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"unknown keys {', '.join(unknown)}; known are {', '.join(known)}")
    return DraftingPolicy(**{"mode": AUTO, **values})


def from_environment() -> DraftingPolicy:
    """The server's policy; `always` where the variable is not set.

    Raises:
        ValueError: names the variable.
    """
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return DraftingPolicy()
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}={text}: {error}") from error


def request_mode(sampling_params: Any) -> str | None:
    """What a request asks for in its custom_params; None where it leaves it to the server."""
    custom = sampling_params.custom_params
    return custom.get(REQUEST_KEY) if isinstance(custom, dict) else None


def request_refusal(sampling_params: Any) -> str | None:
    """Why a request's own setting cannot be taken; None when it can."""
    mode = request_mode(sampling_params)
    if mode is None or mode in MODES:
        return None
    return f"custom_params.{REQUEST_KEY}={mode!r}: use one of {', '.join(MODES)}, or leave it out."
