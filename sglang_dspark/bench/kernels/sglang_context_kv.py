"""SGLang's own Triton writer, as the installed wheel has it: the baseline. It is loaded where it lies, never copied.

SGLang launches it with Triton's default of four warps, each of which does the same row; one warp is the better
setting, so that is a second baseline. The file needs torch and Triton only, so it is loaded by its path: SGLang's
packages need not be importable here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sglang_dspark.bench.kernels.op import Call, UpstreamMissing
from sglang_dspark.bench.kernels.sglang_modules import version
from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables
from sglang_dspark.platforms import Platform

MODULE = "sglang.kernels.ops.speculative.dspark.fused_kv_write"
FUNCTION = "fused_kv_norm_rope_write"
KERNEL = "_fused_kv_norm_rope_write_kernel"
# The baselines, and the launch options that each adds to SGLang's own.
SGLANG = "sglang"
VARIANTS: dict[str, dict[str, int]] = {SGLANG: {}, "sglang_1_warp": {"num_warps": 1}}


class LaunchedWith:
    """A Triton kernel whose every launch has these options too."""

    def __init__(self, kernel: Any, options: dict[str, int]) -> None:
        self._kernel, self._options = kernel, options

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._kernel[grid], **self._options)


def load(variant: str = SGLANG) -> Callable[..., None]:
    """The launcher of SGLang's writer, in a module of its own for each variant."""
    path = _path()
    spec = importlib.util.spec_from_file_location("sglang_context_kv_writer", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        setattr(module, KERNEL, LaunchedWith(getattr(module, KERNEL), VARIANTS[variant]))
        return getattr(module, FUNCTION)
    except (ImportError, AttributeError) as error:
        raise UpstreamMissing(f"{path} of SGLang {version()} cannot be used: {error}") from error


def binder(variant: str) -> Callable[[Platform, ContextKVSpec, ContextKVTables], Call]:
    """What loads a variant and binds it; raises `UpstreamMissing`."""

    def bind_variant(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> Call:
        if platform.device_type == "cpu":
            raise UpstreamMissing("SGLang's writer runs on a GPU only")
        return bind(load(variant), spec, tables)

    return bind_variant


def bind(write: Callable[..., None], spec: ContextKVSpec, tables: ContextKVTables) -> Callable[..., None]:
    """SGLang's writer with the call of ours: kv, positions, slots."""
    if spec.pool_dtype != torch.bfloat16:
        raise UpstreamMissing(f"SGLang's writer does not cover a pool of {spec.pool_dtype}")
    pools = zip(tables.k_pools, tables.v_pools, strict=True)
    rows = [(k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0)) for k, v in pools]
    meta = torch.tensor(rows, dtype=torch.int64, device=tables.cos_sin.device)
    constants: dict[str, Any] = {
        "num_layers": spec.num_layers,
        "kv_size": spec.num_kv_heads * spec.head_dim,
        "head_dim": spec.head_dim,
        "eps": spec.eps,
        "is_neox_style": spec.is_neox,
        "rotary_dim": spec.rotary_dim,
    }

    def call(
        kv: torch.Tensor,  # [T, L, 2, H, D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
    ) -> None:
        write(kv, meta, tables.norm_multipliers, tables.cos_sin, positions, slots, **constants)

    return call


def _path() -> Path:
    package, *inside = MODULE.split(".")
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations if found else None) or ():
        path = Path(folder).joinpath(*inside).with_suffix(".py")
        if path.exists():
            return path
    if found is None:
        raise UpstreamMissing("SGLang is not installed")
    raise UpstreamMissing(f"SGLang {version()} has no {MODULE}")
