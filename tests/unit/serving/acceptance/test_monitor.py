"""The scheduler's monitor: what it counts, tells requests and exports, and when."""

from __future__ import annotations

import logging

import pytest
import torch

from sglang_dspark.serving.acceptance.alarms import WINDOW_ROUNDS
from sglang_dspark.serving.acceptance.draft_gate import SWITCH
from sglang_dspark.serving.acceptance.drafting_policy import DraftingPolicy
from sglang_dspark.serving.acceptance.drafting_switch import DraftingSwitch
from sglang_dspark.serving.acceptance.metrics import Metrics
from sglang_dspark.serving.acceptance.monitor import CALIBRATION_EXPORTS, EXPORT_STEPS, Monitor
from sglang_dspark.serving.acceptance.rounds import StepFacts
from tests.unit.serving.acceptance.steps import Collector, Request, result

GAMMA = 3


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def monitor(collector: Collector) -> Monitor:
    return Monitor(GAMMA, compact=False, metrics=Metrics(collector, GAMMA), speaks=True)


def step(monitor: Monitor, reqs: list[Request], accepted: list[int], facts: StepFacts | None = None) -> None:
    monitor.observe(result(accepted), reqs, [True] * len(reqs), facts or StepFacts())


def test_counts_are_there_before_the_last_answer_leaves(monitor: Monitor, collector: Collector) -> None:
    """A client that scrapes when it has its answers must find all of their rounds."""
    reqs = [Request(), Request()]
    step(monitor, reqs, [2, 0])
    reqs[0].ended = True
    monitor.before_answers(reqs)
    assert collector.value("rounds", drafted="yes") == 0, "a batch that runs on is exported every few dozen steps"
    monitor.observe(result([3, 3]), reqs, [False, True], StepFacts())
    reqs[1].ended = True
    monitor.before_answers(reqs)
    assert collector.value("rounds", drafted="yes") == 3
    assert collector.by_position("accepted_tokens", GAMMA) == [2, 2, 1]
    assert collector.by_position("proposed_tokens", GAMMA) == [3, 3, 3]


def test_a_long_batch_is_exported_every_few_dozen_steps(monitor: Monitor, collector: Collector) -> None:
    reqs = [Request()]
    for number in range(1, 2 * EXPORT_STEPS):
        step(monitor, reqs, [1])
        monitor.before_answers(reqs)
        assert collector.value("draft_steps", ran="yes") == number // EXPORT_STEPS * EXPORT_STEPS


def test_calibration_waits_longer_but_not_beyond_the_last_answer(monitor: Monitor, collector: Collector) -> None:
    reqs = [Request()]
    sampled = StepFacts(confidence=torch.ones(1, GAMMA))
    for _ in range(CALIBRATION_EXPORTS * EXPORT_STEPS - 1):
        step(monitor, reqs, [1], sampled)
        monitor.before_answers(reqs)
    assert (
        collector.value("draft_steps", ran="yes") > 0 and collector.value("survival", position="1", bin="0.9-1.0") == 0
    )
    step(monitor, reqs, [1], sampled)
    monitor.before_answers(reqs)
    steps = CALIBRATION_EXPORTS * EXPORT_STEPS
    assert collector.value("survival", position="1", bin="0.9-1.0") == steps
    step(monitor, reqs, [1], sampled)
    reqs[0].ended = True
    monitor.before_answers(reqs)
    assert collector.value("survival", position="1", bin="0.9-1.0") == steps + 1


def test_nothing_new_is_not_exported(monitor: Monitor, collector: Collector) -> None:
    """Prefills stream too, and answers of one token end there."""
    ended = Request()
    ended.ended = True
    monitor.before_answers([ended])
    monitor.before_answers([])
    assert collector.increments == 0


def test_sampled_confidences_are_matched_with_the_rows_that_count(monitor: Monitor, collector: Collector) -> None:
    """Row 0 had ended: its confidence must not be read with row 1's acceptance."""
    confidence = torch.tensor([[0.05, 1.0, 1.0], [0.95, 1.0, 1.0]])
    reqs = [Request(), Request()]
    monitor.observe(result([0, 3]), reqs, [False, True], StepFacts(confidence=confidence))
    monitor.export()
    assert [collector.value("survival", position=str(p), bin="0.9-1.0") for p in (1, 2, 3)] == [1, 1, 1]
    assert [collector.value("survival_accepted", position=str(p), bin="0.9-1.0") for p in (1, 2, 3)] == [1, 1, 1]
    assert collector.value("survival", position="1", bin="0.0-0.1") == 0


def test_a_request_s_switch_is_told_and_its_changes_counted(monitor: Monitor, collector: Collector) -> None:
    req = Request()
    switch = DraftingSwitch(DraftingPolicy(mode="auto", window=2), "auto")
    setattr(req, SWITCH, switch)
    step(monitor, [req], [0], StepFacts(switched=True))
    step(monitor, [req], [0], StepFacts(switched=True))
    assert not switch.wants_draft
    monitor.export()
    assert collector.value("drafting_changes", to="stopped") == 1


def test_rounds_without_drafts_are_in_the_answer_s_histogram(monitor: Monitor) -> None:
    """SGLang notes no cap there; as a round without one it would count as a whole block proposed."""
    req = Request()
    step(monitor, [req], [0], StepFacts(drafted=False, stopped=[True]))
    assert req.spec_cap_lens_histogram == [0, 1]
    step(monitor, [req], [2])
    assert req.spec_cap_lens_histogram == [0, 1]


def test_sglang_notes_caps_itself(collector: Collector) -> None:
    """Twice would be a round more than there was."""
    monitor = Monitor(GAMMA, compact=True, metrics=None, speaks=True)
    req = Request()
    monitor.observe(result([0], caps=[1]), [req], [True], StepFacts(drafted=False, stopped=[True]))
    assert req.spec_cap_lens_histogram == []


def losing_window(monitor: Monitor) -> None:
    reqs = [Request() for _ in range(16)]
    for _ in range(WINDOW_ROUNDS // 16):
        step(monitor, reqs, [0] * 16)
        monitor.before_answers(reqs)
    monitor.export()


def test_a_losing_draft_is_warned_of_and_counted(monitor: Monitor, collector: Collector, caplog) -> None:
    losing_window(monitor)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "mean accepted length was 1.00" in warning.getMessage()
    losing_window(monitor)
    assert len(caplog.records) == 1, "the log hears it once in ten minutes"
    assert collector.value("alarms", alarm="low_acceptance") == 2


def test_other_ranks_stay_silent_and_a_server_without_metrics_warns(caplog) -> None:
    losing_window(Monitor(GAMMA, compact=False, metrics=None, speaks=False))
    assert caplog.records == []
    losing_window(Monitor(GAMMA, compact=False, metrics=None, speaks=True))
    assert len(caplog.records) == 1


def test_rounds_without_drafts_raise_no_alarm(monitor: Monitor, caplog) -> None:
    """They were stopped on purpose."""
    reqs = [Request() for _ in range(16)]
    for _ in range(3 * WINDOW_ROUNDS // 16):
        step(monitor, reqs, [0] * 16, StepFacts(drafted=False, stopped=[True] * 16))
    monitor.export()
    assert caplog.records == []
