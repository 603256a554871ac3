"""Our worker on SGLang's CPU engine."""

from __future__ import annotations

from typing import Any

import torch

from sglang_dspark.serving.worker import DSparkWorker


class _StreamlessTensor(torch.Tensor):
    """A tensor whose stream bookkeeping does nothing: CPU streams are not streams of the allocator."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def record_stream(self, stream: Any) -> None:
        """Ignore the stream."""


class CpuDSparkWorker(DSparkWorker):
    """The worker with the one CUDA-only call of the decode step taken out."""

    def _forward_decode(
        self, batch: Any, on_publish: Any, grammar_barrier: Any = None, coordination_plan: Any = None
    ) -> Any:
        if batch.seq_lens is not None and not batch.forward_mode.is_idle():
            batch.seq_lens = batch.seq_lens.as_subclass(_StreamlessTensor)
        return super()._forward_decode(batch, on_publish, grammar_barrier, coordination_plan)
