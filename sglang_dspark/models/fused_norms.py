"""The draft's Gemma norms on ROCm, fused whether or not SGLANG_USE_AITER is set.

SGLang 0.5.23 has a Triton kernel for them and takes it only with that switch, which its images set and its sources do
not; without it each norm is about six small kernels. Its fused ops may be pinned to one path, so ours are.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from sglang.srt.layers.layernorm import GemmaRMSNorm

from sglang_dspark.platforms import Platform


def pin_fused_norms(model: torch.nn.Module, platform: Platform) -> int:
    """Pin every Gemma norm of `model` to SGLang's Triton kernel on an AMD platform; leave other platforms alone.

    Returns:
        How many norms were pinned.
    """
    if platform.name != "amd":
        return 0
    from sglang.kernels.ops.layernorm.minimax_m3_rmsnorm import gemma_fused_add_rmsnorm, gemma_rmsnorm

    norms = [module for module in model.modules() if isinstance(module, GemmaRMSNorm)]
    for norm in norms:
        norm._forward_method = functools.partial(_forward, norm, gemma_rmsnorm, gemma_fused_add_rmsnorm)
    return len(norms)


def _forward(
    norm: GemmaRMSNorm,
    plain: Any,
    with_residual: Any,
    x: torch.Tensor,  # [T, hidden]
    residual: torch.Tensor | None = None,  # [T, hidden]
    post_residual_addition: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """What `GemmaRMSNorm.forward_hip` does with the switch set."""
    if residual is None:
        out: torch.Tensor = plain(x, norm.weight.data, norm.variance_epsilon)
        return out
    if post_residual_addition is not None:
        residual = residual + post_residual_addition
    both: tuple[torch.Tensor, torch.Tensor] = with_residual(x, residual, norm.weight.data, norm.variance_epsilon)
    return both
