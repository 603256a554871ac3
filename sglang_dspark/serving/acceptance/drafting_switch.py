"""Whether one request drafts in its next round: stops where drafting loses, tries again, and resumes where it wins.

A state machine over the rounds of one request. Every rank of a tensor-parallel group sees the same rounds in the same
order, so all come to the same state without talking to each other.
"""

from __future__ import annotations

from collections import deque

from sglang_dspark.serving.acceptance.drafting_policy import ALWAYS, AUTO, NEVER, DraftingPolicy

DRAFTING, STOPPED, PROBING = "drafting", "stopped", "probing"


class DraftingSwitch:
    """One request's switch.

    `drafting` judges the last `window` rounds and stops when their mean is low. `stopped` waits `pause` rounds and then
    probes. `probing` judges `probe` rounds: it resumes when their mean is high, and stops again for twice the time when
    it is not. Drafts that happen to run while it is stopped (another request of the batch wanted them, or they were
    under way already) are judged as a probe's.
    """

    __slots__ = ("_adapts", "_lengths", "_pause", "_policy", "_wait", "state")

    def __init__(self, policy: DraftingPolicy, mode: str) -> None:
        """Start drafting, unless `mode` is `never`."""
        self._policy, self._adapts = policy, mode == AUTO
        self.state = STOPPED if mode == NEVER else DRAFTING
        self._pause = policy.pause
        self._wait = 0
        self._lengths: deque[int] = deque(maxlen=policy.window)

    @property
    def wants_draft(self) -> bool:
        """Whether the next round should have proposals."""
        return self.state != STOPPED

    def observe(self, accepted: int, proposed: int, *, drafted: bool) -> str | None:
        """Take one round; the new state where it changed.

        Args:
            accepted: proposals accepted.
            proposed: proposals verified; a drafted round without any (the planner left no budget) tells nothing.
            drafted: False where the round had no drafts.
        """
        if not self._adapts:
            return None
        before = self.state
        if not drafted:
            self._wait_on()
        elif proposed:
            self._lengths.append(1 + accepted)
            self._judge()
        return self.state if self.state != before else None

    def _wait_on(self) -> None:
        if self.state != STOPPED:
            return
        self._wait -= 1
        if self._wait <= 0:
            self._enter(PROBING)

    def _judge(self) -> None:
        policy = self._policy
        needed = policy.window if self.state == DRAFTING else policy.probe
        if len(self._lengths) < needed:
            return
        mean = sum(self._lengths) / len(self._lengths)
        if self.state == DRAFTING:
            if mean < policy.stop_below:
                self._pause = policy.pause
                self._stop()
        elif mean >= policy.resume_above:
            self._enter(DRAFTING)
        else:
            if self.state == PROBING:
                self._pause = min(2 * self._pause, policy.longest_pause)
            self._stop()

    def _stop(self) -> None:
        self._wait = self._pause
        self._enter(STOPPED)

    def _enter(self, state: str) -> None:
        self.state = state
        size = self._policy.window if state == DRAFTING else self._policy.probe
        self._lengths = deque(maxlen=size)


def switch_mode(policy: DraftingPolicy, requested: str | None) -> str:
    """The mode of a request: its own wish, else the server's."""
    return policy.mode if requested is None else requested


def new_switch(policy: DraftingPolicy, requested: str | None) -> DraftingSwitch | None:
    """A switch for a request; None where it always drafts."""
    mode = switch_mode(policy, requested)
    return None if mode == ALWAYS else DraftingSwitch(policy, mode)
