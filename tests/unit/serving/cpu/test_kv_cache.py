"""The draft's fp8 pool on a CPU is an accelerator's; every other pool is SGLang's affair."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache import kv_cache_configurator

from sglang_dspark.serving.cpu.kv_cache import around_configure


def seen_while_configuring(*, draft: bool, dtype: torch.dtype) -> bool:
    """Whether SGLang took the machine for a CPU while it configured the pool."""
    seen = []

    def configure(configurator: SimpleNamespace, *, pre_model_load_memory: int) -> int:
        seen.append(kv_cache_configurator.current_platform.is_cpu())
        return pre_model_load_memory

    configurator = SimpleNamespace(is_draft_worker=draft, kv_cache_dtype=dtype)
    assert around_configure(configure, configurator, pre_model_load_memory=7) == 7
    return seen[0]


def test_only_the_draft_s_fp8_pool_is_an_accelerator_s() -> None:
    """A target with an fp8 pool must still hear SGLang's own refusal."""
    assert seen_while_configuring(draft=True, dtype=torch.float8_e4m3fn) is False
    assert seen_while_configuring(draft=True, dtype=torch.bfloat16) is True
    assert seen_while_configuring(draft=False, dtype=torch.float8_e4m3fn) is True


def test_the_platform_comes_back_after_a_failure() -> None:
    """One failed start must not change what the process takes itself for."""
    before = kv_cache_configurator.current_platform

    def configure(configurator: SimpleNamespace, *, pre_model_load_memory: int) -> int:
        raise MemoryError

    with pytest.raises(MemoryError):
        around_configure(
            configure,
            SimpleNamespace(is_draft_worker=True, kv_cache_dtype=torch.float8_e4m3fn),
            pre_model_load_memory=0,
        )
    assert kv_cache_configurator.current_platform is before
