"""The fresh process: what its answer means, and what becomes of one that gives none."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from sglang_dspark.checkpoints.lint import Level
from sglang_dspark.doctor import registration
from sglang_dspark.doctor.findings import Case
from sglang_dspark.doctor.fresh_process import MARK
from sglang_dspark.doctor.registration import WORKER_HOOK, NoAnswer, ask, judge

HEALTHY = {
    "hooks": {WORKER_HOOK: True, "sglang.a.b": True},
    "errors": [],
    "draft_class": "sglang_dspark.models.minimax_m3_dspark.DSparkMiniMaxDraftModel",
    "top_k_renorm": True,
}


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def running(argument: str) -> bool:
    """Whether a process has this argument."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:  # It has ended meanwhile.
            continue
    return False


@pytest.mark.parametrize(
    ("change", "subject", "text"),
    [
        ({"hooks": {WORKER_HOOK: True, "sglang.a.b": False}}, "hook", "sglang.a.b was registered and not applied"),
        ({"hooks": {WORKER_HOOK: False}}, "hooks", "not the one on"),
        ({"hooks": {"sglang.a.b": True}}, "hooks", "1 hooks of ours, not the one on"),
        ({"hooks": {}}, "hooks", "no hook of ours"),
        ({"errors": ["Failed to execute general plugin: dspark"]}, "SGLang's log", "Failed to execute"),
        ({"draft_class": "sglang.srt.models.dspark_minimax.DSparkMiniMaxDraftModel"}, "model class", "sglang.srt"),
        ({"draft_class": None}, "model class", "SGLang's own"),
    ],
)
def test_each_way_of_not_being_registered(change: dict, subject: str, text: str) -> None:
    wrong = [f for f in judge({**HEALTHY, **change}, cpu_engine=True) if f.level is Level.PROBLEM]
    assert any(f.subject == subject and text in f.found and f.remedy for f in wrong)


def test_registered() -> None:
    assert [f.level for f in judge(HEALTHY, cpu_engine=False)] == [Level.OK] * 3


def test_a_platform_without_sampling_kernels() -> None:
    """Fault 1. One vendor's missing kernels once made drafts greedy without a word. On a CPU it is how it is meant."""
    without = {**HEALTHY, "top_k_renorm": False}
    assert [f.subject for f in judge(without, cpu_engine=False) if f.level is Level.WARNING] == ["sampling"]
    assert [f.level for f in judge(without, cpu_engine=True)] == [Level.OK] * 3


def test_an_answer_among_other_output() -> None:
    code = f"print('loading'); print({MARK!r} + '{{\"hooks\": {{}}}}'); print('bye')"
    assert ask(Case(), python(code)) == {"hooks": {}}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys; sys.exit('no libamdhip64.so')", "status 1: no libamdhip64.so"),
        ("print('nothing of note')", "status 0: it printed nothing"),
        ("import os; os.abort()", "status -6"),
    ],
)
def test_no_answer(code: str, text: str) -> None:
    with pytest.raises(NoAnswer, match=text):
        ask(Case(), python(code))


def test_a_process_that_hangs_is_ended_with_its_children() -> None:
    """An import that waits for a GPU's lock would otherwise leave the doctor, and then itself, there for ever."""
    sleep = f"import time; time.sleep({os.getpid()}.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    started = time.monotonic()
    with pytest.raises(NoAnswer, match="no answer in 1 s"):
        ask(Case(), python(code), limit_seconds=1.0)
    assert time.monotonic() - started < 20
    for _ in range(50):
        if not running(sleep):
            return
        time.sleep(0.1)
    pytest.fail("its child is still running")


def test_an_answer_that_fails_is_a_finding(monkeypatch) -> None:
    monkeypatch.setattr(registration, "COMMAND", ())
    monkeypatch.setattr(registration, "ask", lambda case: (_ for _ in ()).throw(NoAnswer("it ended with status 1")))
    (finding,) = registration.check(Case())
    assert finding.level is Level.PROBLEM and finding.found == "it ended with status 1"


def test_quick_says_what_it_left_out() -> None:
    (finding,) = registration.check(Case(quick=True))
    assert finding.level is Level.WARNING and "--quick" in finding.remedy
