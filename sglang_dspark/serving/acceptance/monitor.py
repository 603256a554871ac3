"""The scheduler process's acceptance monitor: counts every processed decode step, exports, warns.

Steps are counted where SGLang resolves a decode result, before it streams the answers. Counts are exported before the
answers of a batch leave whose requests have all ended, and every EXPORT_STEPS steps, so whoever has the last answer
finds all of its rounds at /metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from sglang_dspark.serving.acceptance.alarms import Alarms
from sglang_dspark.serving.acceptance.calibration import SurvivalBins
from sglang_dspark.serving.acceptance.counters import Counters, Counts
from sglang_dspark.serving.acceptance.draft_gate import SWITCH
from sglang_dspark.serving.acceptance.metrics import Metrics
from sglang_dspark.serving.acceptance.rounds import Rounds, StepFacts, read_step

logger = logging.getLogger(__name__)

# Steps between exports while a batch runs on: half a second or so of a large model's decoding. The calibration has many
# more series, and nobody waits for them.
EXPORT_STEPS = 32
CALIBRATION_EXPORTS = 8


class Monitor:
    """One a scheduler process."""

    def __init__(self, gamma: int, *, compact: bool, metrics: Metrics | None, speaks: bool) -> None:
        """Count steps with `gamma` proposals a block.

        Args:
            gamma: proposals of a full block.
            compact: SGLang verifies capped lengths only, see `read_step`.
            metrics: None where this process reports none.
            speaks: this rank writes the warnings.
        """
        self._gamma, self._compact = gamma, compact
        self._metrics, self._speaks = metrics, speaks
        self._counters = Counters(gamma)
        self._survival = SurvivalBins()
        self._alarms = Alarms(time.monotonic)
        self._steps = self._exports = 0

    def observe(self, result: Any, reqs: Sequence[Any], counted: Sequence[bool], facts: StepFacts) -> None:
        """Take one resolved decode step."""
        rounds = read_step(result, counted, facts, self._gamma, compact=self._compact)
        self._counters.add(rounds, draft_ran=facts.drafted)
        self._steps += 1
        if facts.confidence is not None:
            self._survival.add(facts.confidence[rounds.rows], rounds.proposed, rounds.accepted)
        if facts.switched:
            self._tell_switches(rounds, reqs)
        if not facts.drafted and result.cap_lens is None:
            # SGLang notes no cap in this mode; without one these would read as rounds of gamma proposals.
            for row, accepted in zip(rounds.rows, rounds.accepted, strict=True):
                reqs[row].update_spec_cap_lens_histogram(1 + accepted)

    def _tell_switches(self, rounds: Rounds, reqs: Sequence[Any]) -> None:
        told = zip(rounds.rows, rounds.accepted, rounds.proposed, rounds.drafted, strict=True)
        for row, accepted, proposed, drafted in told:
            switch = getattr(reqs[row], SWITCH, None)
            if switch is not None and (state := switch.observe(accepted, proposed, drafted=drafted)):
                self._counters.note_change(state)

    def before_answers(self, reqs: Sequence[Any]) -> None:
        """Export if it is time: all of these requests have ended, or enough steps have passed."""
        if not self._steps:
            return
        ended = all(req.finished() for req in reqs)
        if ended or self._steps >= EXPORT_STEPS:
            self.export(everything=ended)

    def export(self, *, everything: bool = True) -> None:
        """Hand on what was counted since last time; the calibration only now and then, unless `everything` is due."""
        self._steps = 0
        self._exports += 1
        counts = self._counters.take()
        if self._metrics is not None:
            self._metrics.export(counts)
            if everything or self._exports % CALIBRATION_EXPORTS == 0:
                self._metrics.export_calibration(self._survival.take())
        self._warn(counts)

    def _warn(self, counts: Counts) -> None:
        alarm = self._alarms.observe(counts.drafted_rounds, sum(counts.proposed), sum(counts.accepted))
        if alarm is None:
            return
        if self._metrics is not None:
            self._metrics.count_alarm(alarm.kind)
        if self._speaks and alarm.speaks:
            logger.warning("%s", alarm.text)
