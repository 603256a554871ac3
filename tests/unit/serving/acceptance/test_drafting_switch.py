"""The state machine of one request: when it stops, tries again, resumes, and that it does not flutter."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sglang_dspark.serving.acceptance.drafting_policy import DraftingPolicy
from sglang_dspark.serving.acceptance.drafting_switch import DRAFTING, PROBING, STOPPED, DraftingSwitch, new_switch

POLICY = DraftingPolicy(mode="auto", stop_below=1.5, resume_above=2.0, window=4, pause=6, longest_pause=20, probe=2)


def run(switch: DraftingSwitch, accepted: int, rounds: int) -> list[str]:
    """Rounds as a server without overlap makes them: drafted where the switch wants it. Returns the changes."""
    changes = []
    for _ in range(rounds):
        drafts = switch.wants_draft
        changes.append(switch.observe(accepted if drafts else 0, 7 if drafts else 0, drafted=drafts))
    return [change for change in changes if change]


def stopped(policy: DraftingPolicy = POLICY) -> DraftingSwitch:
    switch = DraftingSwitch(policy, "auto")
    assert run(switch, 0, policy.window) == [STOPPED]
    return switch


def test_it_stops_after_a_window_of_losing_rounds_and_not_before() -> None:
    switch = DraftingSwitch(POLICY, "auto")
    assert run(switch, 0, POLICY.window - 1) == [] and switch.wants_draft
    assert run(switch, 0, 1) == [STOPPED] and not switch.wants_draft


def test_it_goes_on_where_drafting_pays() -> None:
    switch = DraftingSwitch(POLICY, "auto")
    assert run(switch, 3, 500) == [] and switch.state == DRAFTING


def test_a_good_past_does_not_excuse_for_ever() -> None:
    """The mean is over the last window, not over the request."""
    switch = DraftingSwitch(POLICY, "auto")
    run(switch, 7, 500)
    assert run(switch, 0, POLICY.window) == [STOPPED]


def test_between_the_thresholds_it_stays_as_it_is() -> None:
    """Hysteresis: a mean of 1.75 neither stops a drafting request nor resumes a stopped one."""
    policy = replace(POLICY, probe=4)  # any four rounds below have the same mean

    def rounds(switch: DraftingSwitch) -> list[str]:
        changes = []
        for round_number in range(200):
            drafts = switch.wants_draft
            accepted = (0 if round_number % 4 == 0 else 1) if drafts else 0
            changes.append(switch.observe(accepted, 7 if drafts else 0, drafted=drafts))
        return [change for change in changes if change]

    assert rounds(DraftingSwitch(policy, "auto")) == []
    changes = rounds(stopped(policy))
    assert PROBING in changes and DRAFTING not in changes


def test_it_probes_after_the_pause_and_resumes_where_it_wins_again() -> None:
    switch = stopped()
    assert run(switch, 5, POLICY.pause - 1) == [] and not switch.wants_draft
    assert run(switch, 5, 1) == [PROBING] and switch.wants_draft
    assert run(switch, 5, POLICY.probe) == [DRAFTING]
    assert run(switch, 5, 100) == []


def test_the_pause_doubles_with_every_failed_probe_up_to_its_limit() -> None:
    """Otherwise a request that never wins would pay for a probe again and again."""
    switch, pauses = stopped(), []
    for _ in range(5):
        paused = 0
        while not switch.wants_draft:
            run(switch, 0, 1)
            paused += 1
        pauses.append(paused)
        run(switch, 0, POLICY.probe)
    assert pauses == [6, 12, 20, 20, 20]


def test_a_request_that_resumed_starts_with_the_short_pause_again() -> None:
    switch = stopped()
    run(switch, 0, POLICY.pause + POLICY.probe)  # a failed probe: the next pause is 12
    run(switch, 5, 2 * POLICY.pause + POLICY.probe)
    assert switch.state == DRAFTING
    assert run(switch, 0, POLICY.window) == [STOPPED]
    assert run(switch, 0, POLICY.pause) == [PROBING]


def test_drafts_that_run_for_others_are_judged_as_a_probe() -> None:
    """Static verify drafts for a whole batch where one request wants it; that evidence is free."""
    switch = stopped()
    assert switch.observe(5, 7, drafted=True) is None
    assert switch.observe(5, 7, drafted=True) == DRAFTING
    losing = stopped()
    for _ in range(50):
        losing.observe(0, 7, drafted=True)
    assert losing.state == STOPPED


def test_rounds_under_way_when_it_changes_state_do_not_confuse_it() -> None:
    """Overlap scheduling has launched the next round before this one's result is known."""
    switch = stopped()
    assert switch.observe(0, 7, drafted=True) is None and switch.state == STOPPED
    run(switch, 0, POLICY.pause)
    assert switch.state == PROBING
    assert switch.observe(0, 0, drafted=False) is None and switch.state == PROBING
    assert run(switch, 5, POLICY.probe) == [DRAFTING]


def test_a_drafted_round_without_budget_tells_nothing() -> None:
    """The planner verified the anchor alone: the draft was not judged."""
    switch = DraftingSwitch(POLICY, "auto")
    for _ in range(100):
        switch.observe(0, 0, drafted=True)
    assert switch.state == DRAFTING


def test_never_stays_never() -> None:
    switch = DraftingSwitch(POLICY, "never")
    assert run(switch, 0, 100) == [] and not switch.wants_draft
    switch.observe(7, 7, drafted=True)
    assert not switch.wants_draft


@pytest.mark.parametrize(
    ("server", "request_asks", "drafts"),
    [
        ("always", None, None),
        ("always", "never", False),
        ("always", "auto", True),
        ("never", None, False),
        ("never", "always", None),
        ("auto", None, True),
        ("auto", "always", None),
    ],
)
def test_a_request_s_wish_goes_before_the_server_s(server: str, request_asks: str | None, drafts: bool | None) -> None:
    """None: no switch, nothing to ask in any round."""
    switch = new_switch(DraftingPolicy(mode=server), request_asks)
    assert (None if switch is None else switch.wants_draft) == drafts


def test_two_ranks_come_to_the_same_state() -> None:
    """They share rounds and nothing else; a difference would hang the group in a collective."""
    generator = random.Random(1)
    first, second = (DraftingSwitch(POLICY, "auto") for _ in range(2))
    for _ in range(2000):
        assert first.wants_draft == second.wants_draft
        drafted = first.wants_draft or generator.random() < 0.1
        round_ = (generator.choice([0, 0, 0, 1, 4]) if drafted else 0, 7 if drafted else 0)
        assert first.observe(*round_, drafted=drafted) == second.observe(*round_, drafted=drafted)
