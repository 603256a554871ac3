"""A broken draft warns once in a while; a good one, and a few bad rounds of it, never."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglang_dspark.serving.acceptance.alarms import (
    LOW_ACCEPTANCE,
    LOW_ACCEPTED_LENGTH,
    NO_PROPOSALS,
    REPEAT_SECONDS,
    WINDOW_ROUNDS,
    Alarms,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def alarms(clock: Clock) -> Alarms:
    return Alarms(clock)


def window(alarms: Alarms, length: float, proposed: int = 7 * WINDOW_ROUNDS):
    return alarms.observe(WINDOW_ROUNDS, proposed, round((length - 1) * WINDOW_ROUNDS))


def test_nothing_proposed(alarms: Alarms) -> None:
    """Fault 2. Reported of a platform whose kernels were stubs: 1197 cycles, 0 proposed, and no word."""
    alarm = window(alarms, 1.0, proposed=0)
    assert alarm.kind == NO_PROPOSALS and alarm.speaks
    for cause in ("sps-table-path", "confidence", "docs/troubleshooting.md#fault-2"):
        assert cause in alarm.text


@pytest.mark.parametrize("length", [1.0, 1.1, LOW_ACCEPTED_LENGTH - 0.01])
def test_little_accepted(alarms: Alarms, length: float) -> None:
    """1.0 is a draft of other layers or another target, 1.1 one whose block starts elsewhere."""
    alarm = window(alarms, length)
    assert alarm.kind == LOW_ACCEPTANCE and alarm.speaks
    causes = ("target_layer_ids", "another target", "sample_from_anchor", "block_size", "fp8 KV", "sampling kernels")
    for cause in (
        *causes,
        "SGLANG_DSPARK_DRAFTING=auto",
        "docs/troubleshooting.md#the-accepted-length-stays-near-1",
        f"{length:.2f}",
    ):
        assert cause in alarm.text


@pytest.mark.parametrize("length", [LOW_ACCEPTED_LENGTH + 0.01, 1.6, 4.0])
def test_enough_accepted(alarms: Alarms, length: float) -> None:
    assert window(alarms, length) is None


def test_a_window_is_judged_when_it_is_full_and_anew(alarms: Alarms) -> None:
    """Bad rounds in a good window warn of nothing, and a good window does not excuse the next."""
    assert alarms.observe(100, 700, 0) is None
    assert alarms.observe(WINDOW_ROUNDS - 100, 7 * WINDOW_ROUNDS, 3 * WINDOW_ROUNDS) is None
    assert alarms.observe(WINDOW_ROUNDS - 1, 7, 0) is None
    assert alarms.observe(1, 7, 0).kind == LOW_ACCEPTANCE


def test_rounds_that_did_not_draft_do_not_fill_a_window(alarms: Alarms) -> None:
    """Where drafting was stopped on purpose nothing is proposed, and that is no fault."""
    for _ in range(10 * WINDOW_ROUNDS):
        assert alarms.observe(0, 0, 0) is None


def test_the_log_hears_the_same_once_in_ten_minutes(alarms: Alarms, clock: Clock) -> None:
    """A server under load fills a window every second; the metric counts each of them."""
    assert window(alarms, 1.0).speaks
    clock.now += REPEAT_SECONDS - 1
    assert not window(alarms, 1.0).speaks
    assert window(alarms, 1.0, proposed=0).speaks, "another kind is another news"
    clock.now += 1
    assert window(alarms, 1.0).speaks


def test_the_pages_it_names_have_these_parts(alarms: Alarms) -> None:
    """A warning that points nowhere helps nobody."""
    page = (Path(__file__).parents[4] / "docs" / "troubleshooting.md").read_text()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    parts = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for alarm in (window(alarms, 1.0), window(alarms, 1.0, proposed=0)):
        named = re.findall(r"docs/troubleshooting\.md#([a-z0-9-]+)", alarm.text)
        assert named and set(named) <= parts
