"""Plain counters of a scheduler process, cheap enough for every step; what was counted since last time is exported."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sglang_dspark.serving.acceptance.rounds import Rounds, reached


@dataclass(frozen=True)
class Counts:
    """What was counted since the last `take`.

    Attributes:
        drafted_rounds, undrafted_rounds: rounds of requests that drafted, and of those that had stopped.
        proposed, accepted: by position, 1 first.
        verified_tokens: by the target, anchors included.
        steps_with_draft, steps_without_draft: decode steps of the server.
        drafting_changes: requests that changed to `stopped`, `probing` or `drafting`.
    """

    drafted_rounds: int
    undrafted_rounds: int
    proposed: list[int]
    accepted: list[int]
    verified_tokens: int
    steps_with_draft: int
    steps_without_draft: int
    drafting_changes: dict[str, int]


class Counters:
    """Counts of the steps seen since the last `take`."""

    def __init__(self, gamma: int) -> None:
        """Count up to `gamma` proposals a round."""
        self.gamma = gamma
        self._clear()

    def _clear(self) -> None:
        # Rounds by the number of proposals verified, and by the number accepted.
        self._proposed: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()
        self._drafted = self._undrafted = self._verified_tokens = 0
        self._steps_with_draft = self._steps_without_draft = 0
        self._changes: Counter[str] = Counter()

    def add(self, rounds: Rounds, *, draft_ran: bool) -> None:
        """Count one step."""
        self._proposed.update(rounds.proposed)
        self._accepted.update(rounds.accepted)
        drafted = sum(rounds.drafted)
        self._drafted += drafted
        self._undrafted += len(rounds.drafted) - drafted
        self._verified_tokens += rounds.verified_tokens
        if draft_ran:
            self._steps_with_draft += 1
        else:
            self._steps_without_draft += 1

    def note_change(self, state: str) -> None:
        """Count a request that stopped drafting, tries again, or resumed."""
        self._changes[state] += 1

    def take(self) -> Counts:
        """What was counted, and start over."""
        counts = Counts(
            self._drafted,
            self._undrafted,
            self._reached(self._proposed),
            self._reached(self._accepted),
            self._verified_tokens,
            self._steps_with_draft,
            self._steps_without_draft,
            dict(self._changes),
        )
        self._clear()
        return counts

    def _reached(self, rounds: Counter[int]) -> list[int]:
        return reached([rounds[number] for number in range(self.gamma + 1)], self.gamma)
