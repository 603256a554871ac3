"""Whether SGLang really registers the plugin: asked of a fresh process, since SGLang hides failures from its caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from sglang_dspark.doctor.findings import Case, Finding, ok, problem, warning
from sglang_dspark.doctor.fresh_process import DRAFT_CLASS, MARK

COMMAND = (sys.executable, "-m", "sglang_dspark.doctor.fresh_process")
# Importing SGLang takes ten seconds from a warm disk, and minutes from a cold network one.
LIMIT_SECONDS = 300.0
# The hook without which SGLang's own worker serves.
WORKER_HOOK = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"


class NoAnswer(RuntimeError):
    """The process said nothing; the message says how it ended."""


def check(case: Case) -> Iterator[Finding]:
    """Start the process and judge its answer."""
    if case.quick:
        yield warning("registration", "not looked at", "leave out --quick to have a fresh process load SGLang")
        return
    case.progress("starting a fresh process that loads SGLang and its plugins")
    try:
        found = ask(case)
    except NoAnswer as silence:
        yield problem("fresh process", str(silence), "repair what it names: a server ends in the same error")
        return
    yield from judge(found, cpu_engine=case.cpu_engine)


def ask(case: Case, command: tuple[str, ...] = COMMAND, limit_seconds: float = LIMIT_SECONDS) -> dict[str, Any]:
    """The answer of the process.

    Raises:
        NoAnswer: it failed, or was ended because it took too long.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, stdout=output, stderr=errors, text=True, env=dict(case.environment), start_new_session=True
        )
        try:
            status = _wait(child, limit_seconds, case.progress)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        output.seek(0)
        errors.seek(0)
        lines = [line[len(MARK) :] for line in output if line.startswith(MARK)]
        last = next((line.strip() for line in reversed(errors.readlines()) if line.strip()), "it printed nothing")
    if status is None:
        raise NoAnswer(f"no answer in {limit_seconds:.0f} s, so it was ended")
    if status or not lines:
        raise NoAnswer(f"it ended with status {status}: {last}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def judge(found: dict[str, Any], *, cpu_engine: bool) -> Iterator[Finding]:
    """Findings from the answer of `fresh_process.answer`."""
    for line in found["errors"]:
        yield problem("SGLang's log", line, "repair what it names: SGLang itself goes on without it")
    hooks = found["hooks"]
    for target in (target for target, applied in hooks.items() if not applied):
        yield problem("hook", f"{target} was registered and not applied", "look for it in SGLang's log at start-up")
    if not hooks.get(WORKER_HOOK):
        what = f"{len(hooks)} hooks of ours, not the one on {WORKER_HOOK}" if hooks else "no hook of ours"
        yield problem("hooks", what, "see the other findings; SGLang would serve with its own DSPARK worker")
    else:
        yield ok("hooks", f"{sum(hooks.values())} of {len(hooks)} applied, the worker's among them")
    yield _model_class(found["draft_class"])
    if found["draft_class"]:
        yield _sampling(found["top_k_renorm"], cpu_engine)


def _model_class(name: str | None) -> Finding:
    if name and name.startswith("sglang_dspark.models."):
        return ok("model class", f"{DRAFT_CLASS} is {name}")
    remedy = "see the other findings; SGLang would serve drafts with its own class, without our kernels"
    return problem("model class", name or "SGLang's own", remedy, asked=f"{DRAFT_CLASS} of sglang_dspark.models")


def _sampling(has_renorm_kernel: bool, cpu_engine: bool) -> Finding:
    """Kernels that one vendor lacks made others draft greedily without a word (sampled requests accepted nothing)."""
    if cpu_engine:
        return ok("sampling", "sampled verify in torch, top-k and top-p too; no block verification on a CPU")
    if has_renorm_kernel:
        return ok("sampling", "SGLang has kernels for top-k and top-p here; its sampled verify is a Triton kernel")
    remedy = "expect sampled requests to be slower than greedy ones"
    return warning("sampling", "SGLang has no kernel for top-k and top-p here, and uses torch", remedy)


def _wait(child: subprocess.Popen[str], limit_seconds: float, progress: Callable[[str], None]) -> int | None:
    """The exit status; None when the time is over."""
    started, told = time.monotonic(), 0
    while (seconds := time.monotonic() - started) < limit_seconds:
        try:
            return child.wait(timeout=min(1.0, limit_seconds))
        except subprocess.TimeoutExpired:
            if int(seconds) // 5 > told:
                told = int(seconds) // 5
                progress(f"still loading, {seconds:.0f} s")
    return None
