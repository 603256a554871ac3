"""SGLang's own query path of a draft layer, as the installed wheel runs it: the baseline of the query block's op.

Two steps, each SGLang's own function, called as `MiniMaxM3Attention.forward_prepare` and the attention backends of
SGLang 0.5.23 call them: norm and rotation of Q and K (a CUDA kernel in place, or on ROCm a Triton kernel, which a draft
gets without further switches), then the pool's own `set_kv_buffer`. An fp8 pool is scaled and converted there in torch.
The kernels are compiled on the first call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sglang_dspark.bench.kernels.op import Call, UpstreamMissing
from sglang_dspark.bench.kernels.sglang_modules import store, upstream
from sglang_dspark.ops.qk_norm_rope import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform

CUDA_KERNEL = "sglang.kernels.ops.attention.minimax_qknorm_rope", "minimax_qknorm_rope"
ROCM_KERNEL = "sglang.kernels.ops.attention.minimax_m3_qk_norm_rope", "qk_gemma_rmsnorm_rope"

# Takes qkv and positions; returns K as it is to be stored, [T, Hkv * D].
NormAndRotate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def bind(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> Call:
    """SGLang's path with the call of ours: qkv, positions, slots."""
    makers = {"nvidia": cuda_norm_and_rotate, "amd": rocm_norm_and_rotate}
    if platform.name not in makers:
        raise UpstreamMissing("SGLang's fused norm and rotation run on a GPU only")
    scales = spec.pool_scales if spec.k_scale is not None else None
    return joined(makers[platform.name](spec, tables), store(spec, tables.pools, scales), spec)


def joined(norm_and_rotate: NormAndRotate, store_rows: Callable[..., None], spec: QKNormRopeSpec) -> Call:
    """Both steps as one call."""
    v_columns = spec.num_kv_heads * spec.head_dim
    heads = (-1, spec.num_kv_heads, spec.head_dim)

    def call(
        qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
    ) -> None:
        k = norm_and_rotate(qkv, positions)
        store_rows(slots, k.view(heads), qkv[:, -v_columns:].view(heads))

    return call


def cuda_norm_and_rotate(spec: QKNormRopeSpec, tables: QKNormRopeTables) -> NormAndRotate:
    """In place; the weights are bf16, and the kernel adds the 1."""
    kernel = upstream(*CUDA_KERNEL)
    q_weight, k_weight = ((multiplier - 1).to(torch.bfloat16) for multiplier in _multipliers(tables))
    first = spec.num_q_heads * spec.head_dim
    k_columns = slice(first, first + spec.num_kv_heads * spec.head_dim)
    heads = spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads

    def call(qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        kernel(qkv, q_weight, k_weight, tables.cos_sin, positions, *heads, spec.eps)
        return qkv[:, k_columns]

    return call


def rocm_norm_and_rotate(spec: QKNormRopeSpec, tables: QKNormRopeTables) -> NormAndRotate:
    """Into new tensors, as on ROCm."""
    kernel = upstream(*ROCM_KERNEL)
    q_weight, k_weight = (multiplier - 1 for multiplier in _multipliers(tables))
    widths = [heads * spec.head_dim for heads in (spec.num_q_heads, spec.num_kv_heads, spec.num_kv_heads)]

    def call(qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, _ = qkv.split(widths, dim=-1)
        _, rotated_k = kernel(
            *(q, k, q_weight, k_weight, positions, tables.cos_sin),
            *(spec.eps, spec.head_dim, spec.rotary_dim, spec.is_neox),
        )
        rotated: torch.Tensor = rotated_k
        return rotated

    return call


def _multipliers(tables: QKNormRopeTables) -> tuple[torch.Tensor, torch.Tensor]:
    return tables.q_norm_multipliers, tables.k_norm_multipliers
