"""The hooks in SGLang's scheduler: they take, they count what SGLang counts, and they add no copy of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.utils import common

from sglang_dspark.serving import contract
from sglang_dspark.serving.acceptance import hooks
from sglang_dspark.serving.acceptance.rounds import ATTRIBUTE, StepFacts
from tests.unit.serving.acceptance.steps import Collector, Request, result

GAMMA = 3


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(hooks, "_monitor", None)
    reporter = SimpleNamespace(current_scheduler_metrics_enabled=True, is_stats_logging_rank=True)
    return SimpleNamespace(metrics_reporter=reporter, metrics_collector=Collector())


def resolve(processor: Any, reqs: list[Request], accepted: list[int], facts: StepFacts | None = None) -> None:
    step = result(accepted)
    step.speculative_num_draft_tokens = GAMMA + 1
    if facts is not None:
        setattr(step, ATTRIBUTE, facts)

    def original(processor: Any, result: Any, batch: Any) -> str:
        for req in batch.reqs:
            req.ended = True  # nothing after this may look whether a request has ended
        return "tokens"

    assert hooks.around_resolve(original, processor, step, SimpleNamespace(reqs=reqs)) == "tokens"


def test_a_step_is_counted_and_exported_before_the_answer(processor: Any) -> None:
    ended, retracted, running = Request(), Request(), Request()
    ended.ended = retracted.is_retracted = True
    resolve(processor, [ended, retracted, running], [3, 3, 2])
    streamed: list[Any] = []

    def stream(streamer: Any, reqs: Any, return_logprob: bool) -> None:
        streamed.append(processor.metrics_collector.by_position("accepted_tokens", GAMMA))

    hooks.around_stream_output(stream, None, [running], False)
    assert streamed == [[1, 1, 0]], "only the running request counts, and its counts are out before its answer"


def test_the_worker_s_facts_arrive_with_the_result(processor: Any) -> None:
    resolve(processor, [Request()], [0], StepFacts(drafted=False, stopped=[True]))
    hooks.around_stream_output(lambda *args: None, None, [], False)
    assert processor.metrics_collector.value("rounds", drafted="no") == 1


def test_streams_before_the_first_result_pass(processor: Any) -> None:
    seen: list[Any] = []
    hooks.around_stream_output(lambda *args, **kwargs: seen.append((args, kwargs)), "streamer", [], True, skip_req=1)
    assert seen == [(("streamer", [], True), {"skip_req": 1})]


def test_a_rank_that_does_not_report_has_no_metrics(processor: Any) -> None:
    processor.metrics_reporter.current_scheduler_metrics_enabled = False
    resolve(processor, [Request()], [1])
    hooks.around_stream_output(lambda *args: None, None, [], False)
    assert processor.metrics_collector.increments == 0


def test_confidences_travel_with_sglang_s_own_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the event that the scheduler waits for is recorded, and through the same asynchronous copy: no wait of
    their own. A step that is not sampled copies nothing."""
    order: list[str] = []
    monkeypatch.setattr(common, "async_d2h", lambda tensor: order.append("copy") or tensor + 1)
    sampled = SimpleNamespace(**{ATTRIBUTE: StepFacts(confidence=torch.zeros(2, GAMMA))})
    hooks.around_copy_to_cpu(lambda result, **kwargs: order.append("SGLang's, then the event"), sampled)
    assert order == ["copy", "SGLang's, then the event"]
    assert torch.equal(getattr(sampled, ATTRIBUTE).confidence, torch.ones(2, GAMMA))
    order.clear()
    for step in (SimpleNamespace(**{ATTRIBUTE: StepFacts()}), SimpleNamespace()):
        hooks.around_copy_to_cpu(lambda result, **kwargs: order.append("SGLang's"), step)
    assert order == ["SGLang's", "SGLang's"]


def test_installed_hooks_have_taken_and_their_targets_are_in_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, Any] = {}
    monkeypatch.setattr(HookRegistry, "register", lambda target, hook, kind: registered.update({target: hook}))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: HookRegistry._patched.update(registered))
    hooks.install()
    checked = {symbol.path.replace(":", ".") for symbol in contract.HOST_SYMBOLS}
    assert len(registered) == 3 and set(registered) <= checked


def test_a_hook_that_did_not_take_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang only logs it, and every count would be zero."""
    monkeypatch.setattr(HookRegistry, "register", lambda *args: None)
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: None)
    monkeypatch.setattr(HookRegistry, "_patched", set())
    with pytest.raises(RuntimeError, match="_resolve_spec_v2_tokens.*found them not hooked"):
        hooks.install()
