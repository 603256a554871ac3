"""Where the gate is opened, and what a server or request that cannot have it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt import runtime_context

from sglang_dspark.serving.acceptance import setup
from sglang_dspark.serving.acceptance.draft_gate import DraftGate
from sglang_dspark.serving.acceptance.drafting_policy import VARIABLE


class Draft:
    pass


@pytest.fixture
def worker() -> Any:
    parts = {"_proposer": SimpleNamespace(propose=None)}
    parts["_verify_planner"] = SimpleNamespace(schedule_layout=None, is_compact_mode=False)
    return SimpleNamespace(draft_model=Draft(), **parts)


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its parallel groups and observability; a test changes what it needs."""
    found = SimpleNamespace(
        parallel=SimpleNamespace(attn_dp_enabled=False, attn_tp_rank=0, attn_cp_rank=0),
        observability=SimpleNamespace(enable_metrics=True, enable_metrics_for_all_schedulers=False),
    )
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: found.parallel)
    monkeypatch.setattr(runtime_context, "get_observability", lambda: found.observability)
    monkeypatch.setattr(setup, "_unsupported", None)
    for variable in (VARIABLE, setup.CONFIDENCE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return found


def params(mode: str | None) -> Any:
    return SimpleNamespace(custom_params=None if mode is None else {"dspark_drafting": mode})


def test_our_draft_has_a_gate(worker: Any) -> None:
    assert isinstance(setup.open_gate(worker, ours=True), DraftGate)
    assert setup.request_refusal(params("never")) is None
    assert "use one of" in setup.request_refusal(params("nver"))


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("another draft", "a draft that SGLang serves itself (Draft)"),
        ("dp attention", "data-parallel attention"),
        ("simulated", "SGLANG_SIMULATE_ACC_LEN"),
    ],
)
def test_where_drafting_cannot_be_stopped_it_is_refused(worker, server, monkeypatch, case: str, named: str) -> None:
    """To the server that asks for it at start, to a request when it asks; a server that does not ask is served."""
    server.parallel.attn_dp_enabled = case == "dp attention"
    if case == "simulated":
        monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "2.5")
    ours = case != "another draft"
    assert setup.open_gate(worker, ours=ours) is None
    assert setup.request_refusal(params(None)) is None and setup.request_refusal(params("always")) is None
    reason = setup.request_refusal(params("auto"))
    assert "custom_params.dspark_drafting='auto'" in reason and named in reason
    monkeypatch.setenv(VARIABLE, "auto")
    with pytest.raises(RuntimeError) as refusal:
        setup.open_gate(worker, ours=ours)
    assert "SGLANG_DSPARK_DRAFTING" in str(refusal.value) and named in str(refusal.value)


def test_confidences_are_sampled_where_metrics_are_reported(server, monkeypatch) -> None:
    assert setup.confidence_every() == 8
    monkeypatch.setenv(setup.CONFIDENCE_VARIABLE, "1")
    assert setup.confidence_every() == 1
    server.parallel.attn_tp_rank = 1
    assert setup.confidence_every() == 0
    server.observability.enable_metrics_for_all_schedulers = True
    assert setup.confidence_every() == 1
    server.observability.enable_metrics = False
    assert setup.confidence_every() == 0


@pytest.mark.parametrize("value", ["often", "-1", "1.5"])
def test_a_sampling_rate_that_is_no_number_is_refused(monkeypatch, value: str) -> None:
    monkeypatch.setenv(setup.CONFIDENCE_VARIABLE, value)
    with pytest.raises(ValueError, match=f"SGLANG_DSPARK_CONFIDENCE_EVERY={value}"):
        setup.confidence_every()
