"""SGLang's unfused path for both ops: its norm module, its rotary module and its pool's store, one after the other.

That is what SGLang 0.5.23 runs where its fused kernels do not apply: an fp8 pool, a pool of another layout, a platform
without them. The modules are the installed wheel's own, and called as `DSparkMiniMaxAttention.apply_k_norm`,
`apply_k_rope` and `MiniMaxM3Attention._qk_norm` call them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from sglang_dspark.bench.kernels.op import Call, Shape, UpstreamMissing
from sglang_dspark.bench.kernels.sglang_modules import POOL, made, store, upstream
from sglang_dspark.bench.kernels.sglang_qk_norm_rope import joined
from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform

NAME = "unfused"
NORM = "sglang.srt.layers.layernorm", "GemmaRMSNorm"
ROTARY = "sglang.srt.layers.rotary_embedding.base", "RotaryEmbedding"

Module = Callable[..., Any]


def differing_share(platform: Platform, shape: Shape) -> float:
    """Of the elements of its pools: its roundings are others.

    Products may be fused. For an fp8 pool it divides in bf16 first, and two roundings may differ from one. Where SGLang
    has no kernel for the rotation, as on a CPU, it rotates in bf16: that shows in every third of these elements or so.
    """
    if shape.is_fp8:
        return 0.1
    return 0.3 if platform.device_type == "cpu" else 1e-2


def load() -> None:
    """Import what the path needs, or nothing where that fails: binding says why."""
    with contextlib.suppress(UpstreamMissing):
        for names in (NORM, ROTARY, POOL):
            upstream(*names)


def bind_context_kv(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> Call:
    """The context KV writer's call: every layer's K normed and rotated, K and V stored, layer by layer."""
    norms = [norm(spec.eps, multipliers) for multipliers in tables.norm_multipliers]
    rotate = rotary(spec, tables.cos_sin)
    scales = zip(spec.k_scales or (), spec.v_scales or (), strict=True) if spec.k_scales else [None] * spec.num_layers
    stores = [
        store(spec, pools, of_layer)
        for pools, of_layer in zip(zip(tables.k_pools, tables.v_pools, strict=True), scales, strict=True)
    ]
    width, heads = spec.num_kv_heads * spec.head_dim, (-1, spec.num_kv_heads, spec.head_dim)

    def call(
        kv: torch.Tensor,  # [T, L, 2, H, D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
    ) -> None:
        for layer, (norm_k, store_layer) in enumerate(zip(norms, stores, strict=True)):
            k = norm_k(kv[:, layer, 0].reshape(-1, spec.head_dim)).view(-1, width)
            _, k = rotate(positions, k.new_empty((k.shape[0], spec.head_dim)), k)
            store_layer(slots, k.view(heads), kv[:, layer, 1])

    return call


def bind_qk_norm_rope(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> Call:
    """The query block's call, into new tensors."""
    norm_q, norm_k = (norm(spec.eps, m) for m in (tables.q_norm_multipliers, tables.k_norm_multipliers))
    rotate = rotary(spec, tables.cos_sin)
    widths = [heads * spec.head_dim for heads in (spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads)]

    def norm_and_rotate(qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, _ = qkv.split(widths, dim=-1)
        q, k = (of(x.reshape(-1, spec.head_dim).contiguous()).reshape(x.shape) for of, x in ((norm_q, q), (norm_k, k)))
        rotated: torch.Tensor = rotate(positions, q, k)[1]
        return rotated

    scales = spec.pool_scales if spec.k_scale is not None else None
    return joined(norm_and_rotate, store(spec, tables.pools, scales), spec)


def norm(
    eps: float,
    multipliers: torch.Tensor,  # [D] fp32, 1 + w
) -> Module:
    """SGLang's Gemma norm with these weights, as a server in bf16 holds them."""
    module = made(*NORM, multipliers.shape[0], eps=eps).to(multipliers.device, torch.bfloat16).requires_grad_(False)
    module.weight.data.copy_((multipliers - 1).to(torch.bfloat16))
    module.refresh_gemma_weight()
    call: Module = module
    return call


def rotary(
    spec: ContextKVSpec | QKNormRopeSpec,
    cos_sin: torch.Tensor,  # [P, R] fp32
) -> Module:
    """SGLang's rotary module over our table."""
    positions = cos_sin.shape[0]
    module = made(*ROTARY, spec.head_dim, spec.rotary_dim, positions, 10000, spec.is_neox, torch.bfloat16)
    module.cos_sin_cache = cos_sin
    call: Module = module
    return call
