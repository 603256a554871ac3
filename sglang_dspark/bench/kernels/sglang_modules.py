"""Modules of the installed SGLang, imported when a baseline needs one, and what is said where that fails."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from types import SimpleNamespace
from typing import Any

import torch

from sglang_dspark.bench.kernels.op import UpstreamMissing
from sglang_dspark.ops.context_kv import ContextKVSpec
from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec

POOL = "sglang.srt.mem_cache.memory_pool", "MHATokenToKVPool"


def upstream(module: str, name: str) -> Any:
    """An attribute of a module of SGLang's; raises `UpstreamMissing`."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # an import of SGLang's may also fail in a library of its own
        raise UpstreamMissing(
            f"{module}.{name} of SGLang {version()} cannot be used: {type(error).__name__}: {error}"
        ) from error


def made(module: str, name: str, *arguments: Any, **options: Any) -> Any:
    """An object of a class of SGLang's; raises `UpstreamMissing`."""
    kind = upstream(module, name)
    try:
        return kind(*arguments, **options)
    except Exception as error:  # another SGLang's may want other things, and fails in its own ways
        reason = f"{type(error).__name__}: {error}"
        raise UpstreamMissing(f"{name} of SGLang {version()} cannot be made: {reason}") from error


def version() -> str:
    """The installed SGLang's."""
    try:
        return installed_version("sglang")
    except PackageNotFoundError:
        return "(not installed)"


def store(
    spec: ContextKVSpec | QKNormRopeSpec,
    pools: Sequence[torch.Tensor],  # K and V, [slots, H, D] each
    scales: tuple[float, float] | None,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """The store of SGLang's own pool class over these tensors: takes slots, K and V [T, H, D].

    Raises:
        UpstreamMissing: the pool cannot be made.
    """
    device = pools[0].device
    pool = made(
        *POOL,
        size=1,
        page_size=1,
        dtype=spec.pool_dtype,
        head_num=spec.num_kv_heads,
        head_dim=spec.head_dim,
        layer_num=1,
        device=str(device),
        enable_memory_saver=False,
    )
    pool.size = pools[0].shape[0] - 1  # and one page
    pool.k_buffer, pool.v_buffer = ([tensor.view(pool.store_dtype)] for tensor in pools)
    layer = SimpleNamespace(layer_id=0)
    k_scale, v_scale = (None, None) if scales is None else (torch.tensor(scale, device=device) for scale in scales)

    def set_rows(slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        pool.set_kv_buffer(layer, slots, k, v, k_scale, v_scale)

    return set_rows
