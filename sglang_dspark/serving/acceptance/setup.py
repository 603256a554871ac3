"""Puts the acceptance parts around a DSPARK worker when it is built, and refuses settings it could not keep."""

from __future__ import annotations

import os
from typing import Any

from sglang_dspark.serving.acceptance import drafting_policy
from sglang_dspark.serving.acceptance.draft_gate import DraftGate

CONFIDENCE_VARIABLE = "SGLANG_DSPARK_CONFIDENCE_EVERY"
_CONFIDENCE_EVERY = 8

# Why requests of this process cannot choose when they draft; None where they can, or where no worker was built.
_unsupported: str | None = None


def open_gate(worker: Any, *, ours: bool) -> DraftGate | None:
    """The gate in front of a worker's draft; None where drafting cannot be stopped, which only matters if asked for.

    Args:
        worker: SGLang's DSPARK worker, built, on a rank that hosts the draft.
        ours: it serves a MiniMax-M3 draft of this plugin.

    Raises:
        RuntimeError: the environment asks for what this server cannot do.
        ValueError: a variable cannot be read.
    """
    global _unsupported
    policy = drafting_policy.from_environment()
    _unsupported = unsupported(worker, ours=ours)
    if _unsupported is None:
        return DraftGate(worker, policy, confidence_every())
    if policy.mode != drafting_policy.ALWAYS:
        raise RuntimeError(
            f"asked for {drafting_policy.VARIABLE} with mode {policy.mode}, found {_unsupported}; leave it out"
        )
    return None


def unsupported(worker: Any, *, ours: bool) -> str | None:
    """What stands in the way of stopping drafts on this server; None if nothing does."""
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_parallel

    if not ours:
        return f"a draft that SGLang serves itself ({type(worker.draft_model).__name__})"
    if get_parallel().attn_dp_enabled:
        return "data-parallel attention, whose ranks must run the draft in step with each other"
    if envs.SGLANG_SIMULATE_ACC_LEN.get() > 0:
        return "SGLANG_SIMULATE_ACC_LEN, which sets how much is accepted and leaves nothing to judge"
    return None


def request_refusal(sampling_params: Any) -> str | None:
    """Why a request's own drafting mode cannot be taken; None when it can, or when it has none."""
    asked = drafting_policy.request_mode(sampling_params)
    if asked not in (None, drafting_policy.ALWAYS) and _unsupported is not None:
        return f"custom_params.{drafting_policy.REQUEST_KEY}={asked!r}: this server has {_unsupported}; leave it out."
    return drafting_policy.request_refusal(sampling_params)


def confidence_every() -> int:
    """Every how many steps confidences are sampled for calibration; 0 in a process that reports no metrics.

    Raises:
        ValueError: the variable is not a whole number.
    """
    from sglang.srt.runtime_context import get_observability, get_parallel

    text = os.environ.get(CONFIDENCE_VARIABLE, "").strip() or str(_CONFIDENCE_EVERY)
    if not text.isdecimal():
        raise ValueError(
            f"asked for {CONFIDENCE_VARIABLE}={text}; use a whole number of decode steps between samples, 0 for none"
        )
    parallel, observability = get_parallel(), get_observability()
    reports = parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0
    if not observability.enable_metrics or not (reports or observability.enable_metrics_for_all_schedulers):
        return 0
    return int(text)
