"""Warnings that a draft is not doing its work, since nothing else says so: the answers stay right, only slow.

The two kinds are the two ways in which drafts were seen to fail in public reports: nothing is proposed, or what is
proposed is not accepted. A window is judged when it is full, so a few bad rounds warn of nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Drafted rounds in a window.
WINDOW_ROUNDS = 512
# A draft of the wrong layers or block layout was reported at 1.0 to 1.1, a weak one that still fits at 1.3 and more.
LOW_ACCEPTED_LENGTH = 1.2
# The same alarm is not repeated sooner.
REPEAT_SECONDS = 600.0

NO_PROPOSALS, LOW_ACCEPTANCE = "no_proposals", "low_acceptance"

_NO_PROPOSALS = (
    "sglang-dspark: no proposal was verified in the last {rounds} rounds, so the draft only costs time. Likely: the "
    "step-cost table (--speculative-dspark-sps-table-path) or SGLANG_RAGGED_VERIFY_MODE leaves no budget for "
    "proposals; the confidence head predicts that nothing survives, or its temperatures "
    "(--speculative-dspark-confidence-sts-path) belong to another draft; a kernel of the draft is missing here. "
    "See docs/troubleshooting.md#fault-2"
)
_LOW_ACCEPTANCE = (
    "sglang-dspark: the mean accepted length was {length:.2f} over the last {rounds} rounds (1 is nothing accepted), "
    "so serving without speculation may be faster. Likely: the draft was trained for another target, or for other "
    "target_layer_ids; its block_size or sample_from_anchor is not what it was trained with; fp8 KV caches without "
    "scales; the sampling kernels are missing on this platform, so that drafts are greedy where requests sample; or "
    "the prompts are unlike what the draft was trained on, for which SGLANG_DSPARK_DRAFTING=auto stops drafting where "
    "it loses. Check the draft with `sglang-dspark convert --check`. "
    "See docs/troubleshooting.md#the-accepted-length-stays-near-1"
)


@dataclass(frozen=True)
class Alarm:
    """A window that ended badly.

    Attributes:
        kind: NO_PROPOSALS or LOW_ACCEPTANCE.
        text: for the log.
        speaks: False where the log said the same a short while ago.
    """

    kind: str
    text: str
    speaks: bool


class Alarms:
    """Judges windows of drafted rounds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, for the limit on repeats."""
        self._clock = clock
        self._raised_at: dict[str, float] = {}
        self._rounds = self._proposed = self._accepted = 0

    def observe(self, rounds: int, proposed: int, accepted: int) -> Alarm | None:
        """Add drafted rounds with all their proposed and accepted tokens; an alarm when a window ends badly."""
        self._rounds += rounds
        self._proposed += proposed
        self._accepted += accepted
        if self._rounds < WINDOW_ROUNDS:
            return None
        found = self._judge()
        self._rounds = self._proposed = self._accepted = 0
        if found is None:
            return None
        kind, text = found
        return Alarm(kind, text, self._may_speak(kind))

    def _judge(self) -> tuple[str, str] | None:
        if self._proposed == 0:
            return NO_PROPOSALS, _NO_PROPOSALS.format(rounds=self._rounds)
        length = 1 + self._accepted / self._rounds
        if length < LOW_ACCEPTED_LENGTH:
            return LOW_ACCEPTANCE, _LOW_ACCEPTANCE.format(length=length, rounds=self._rounds)
        return None

    def _may_speak(self, kind: str) -> bool:
        now, before = self._clock(), self._raised_at.get(kind)
        if before is not None and now - before < REPEAT_SECONDS:
            return False
        self._raised_at[kind] = now
        return True
