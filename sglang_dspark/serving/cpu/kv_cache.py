"""fp8 KV pools of the draft on a CPU.

SGLang gives the CPU an fp8 pool only with Intel's AMX attention, whose layout is its own. The draft here writes its
pool with our ops and reads it with our attention, so it takes the plain pool that SGLang builds for accelerators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _SeenAsAccelerator:
    """The platform, except that it does not say it is a CPU."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def is_cpu(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)


def around_configure(original: Callable[..., Any], configurator: Any, *, pre_model_load_memory: int) -> Any:
    """Build the draft's fp8 pool as an accelerator's; all other pools are SGLang's affair."""
    from sglang.srt.mem_cache import kv_cache_configurator

    if not (configurator.is_draft_worker and configurator.kv_cache_dtype == torch.float8_e4m3fn):
        return original(configurator, pre_model_load_memory=pre_model_load_memory)
    platform = kv_cache_configurator.current_platform
    kv_cache_configurator.current_platform = _SeenAsAccelerator(platform)
    try:
        return original(configurator, pre_model_load_memory=pre_model_load_memory)
    finally:
        kv_cache_configurator.current_platform = platform
