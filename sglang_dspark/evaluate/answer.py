"""What a judge says of one prompt, and the settings that all prompts of a run share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang_dspark.evaluate.counts import Counts


@dataclass(frozen=True)
class Settings:
    """How prompts are asked and answered.

    Args:
        max_new_tokens: of each answer.
        temperature: 0 is greedy; the paper's Table 1 is at 1.
        chat: put the prompt through the model's chat template, as a user's message.
        template: further arguments of the chat template, `{"enable_thinking": False}` say.
        ignore_end: go on past the end token, to max_new_tokens.
        seed: of the reference's draws; a server draws as it does.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    chat: bool = True
    template: Mapping[str, Any] = field(default_factory=dict)
    ignore_end: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """One answered prompt: what its rounds kept, and how many tokens were read and written."""

    counts: Counts
    prompt_tokens: int
    new_tokens: int


class Judge(Protocol):
    """A target with a draft, asked one prompt at a time."""

    def ask(self, text: str) -> Answer:
        """The answer to one prompt."""

    def describe(self) -> dict[str, Any]:
        """What judged, for the results: target, draft, versions."""
