"""Where the acceptance monitor meets SGLang's scheduler: hooks only in processes that run a DSPARK worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_dspark.serving.acceptance.metrics import Metrics
from sglang_dspark.serving.acceptance.monitor import Monitor
from sglang_dspark.serving.acceptance.rounds import ATTRIBUTE, StepFacts

_MANAGERS = "sglang.srt.managers."
_RESOLVE = _MANAGERS + "scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_STREAM = _MANAGERS + "scheduler_components.output_streamer.SchedulerOutputStreamer"
_RESULT = _MANAGERS + "utils.GenerationBatchResult"

# The scheduler process's monitor, made when the first result is resolved: the positions are known then.
_monitor: Monitor | None = None


def install() -> None:
    """Register and apply the hooks; call it in a scheduler process, before it makes its worker.

    Raises:
        RuntimeError: a hook did not take, which SGLang only logs; no count would be right then.
    """
    hooks = {
        f"{_RESOLVE}._resolve_spec_v2_tokens": around_resolve,
        f"{_STREAM}.stream_output": around_stream_output,
        f"{_RESULT}.copy_to_cpu": around_copy_to_cpu,
    }
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.apply_hooks()
    missing = sorted(set(hooks) - HookRegistry._patched)
    if missing:
        raise RuntimeError(
            f"asked SGLang to hook {', '.join(missing)} for acceptance counts, found them not hooked; look for "
            "'Failed to apply hooks' above"
        )


def around_resolve(original: Callable[[Any, Any, Any], Any], processor: Any, result: Any, batch: Any) -> Any:
    """Count a decode step once SGLang has put its numbers on the host and into the requests."""
    # As SGLang asks it, and before the step can end a request.
    counted = [not (req.is_retracted or req.finished()) for req in batch.reqs]
    tokens = original(processor, result, batch)
    _monitor_of(processor, result).observe(result, batch.reqs, counted, getattr(result, ATTRIBUTE, None) or StepFacts())
    return tokens


def around_stream_output(
    original: Callable[..., None], streamer: Any, reqs: Sequence[Any], *args: Any, **kwargs: Any
) -> None:
    """Export before answers leave, so that their rounds are at /metrics when a client has them."""
    if _monitor is not None:
        _monitor.before_answers(reqs)
    original(streamer, reqs, *args, **kwargs)


def around_copy_to_cpu(original: Callable[..., None], result: Any, *args: Any, **kwargs: Any) -> None:
    """Sampled confidences go to the host with SGLang's own copies, behind the event it waits for anyway."""
    from sglang.srt.utils.common import async_d2h

    facts = getattr(result, ATTRIBUTE, None)
    if facts is not None and facts.confidence is not None:
        facts.confidence = async_d2h(facts.confidence)
    original(result, *args, **kwargs)


def _monitor_of(processor: Any, result: Any) -> Monitor:
    global _monitor
    if _monitor is None:
        from sglang.srt.speculative.ragged_verify import ragged_verify_compact_enabled

        gamma = result.speculative_num_draft_tokens - 1
        reporter = processor.metrics_reporter
        metrics = Metrics(processor.metrics_collector, gamma) if reporter.current_scheduler_metrics_enabled else None
        _monitor = Monitor(
            gamma,
            compact=ragged_verify_compact_enabled(),
            metrics=metrics,
            speaks=reporter.is_stats_logging_rank,
        )
    return _monitor
