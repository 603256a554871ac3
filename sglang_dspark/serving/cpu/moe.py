"""MiniMax-M3's experts on a CPU.

SGLang's native expert loop takes any clamped SwiGLU for GPT-OSS's, whose gate and up columns are interleaved. M3 keeps
them as halves, [gate | up], so that loop mixes them up without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def around_moe_forward_native(
    original: Callable[..., torch.Tensor], layer: Any, x: torch.Tensor, topk_output: Any, moe_runner_config: Any
) -> torch.Tensor:
    """Run M3's experts here and everything else in SGLang's own loop.

    Args:
        original: SGLang's `moe_forward_native`.
        layer: holds w13_weight [E, 2I, hidden] and w2_weight [E, hidden, I].
        x: [T, hidden].
        topk_output: (weights [T, k], expert ids [T, k], router logits).
        moe_runner_config: `gemm1_alpha` and `gemm1_clamp_limit` are SwiGLU-OAI's alpha and limit.

    Returns:
        [T, hidden] in x's dtype, summed over experts in fp32.
    """
    config = moe_runner_config
    if config.activation != "silu" or config.gemm1_alpha is None or config.gate_up_interleaved:
        return original(layer, x, topk_output, config)
    weights, expert_ids, _ = topk_output
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in expert_ids.unique().tolist():
        token, choice = torch.where(expert_ids == expert)
        gate, up = F.linear(x[token], layer.w13_weight[expert]).chunk(2, dim=-1)
        gate = gate.clamp(max=config.gemm1_clamp_limit)
        up = up.clamp(-config.gemm1_clamp_limit, config.gemm1_clamp_limit)
        hidden = gate * torch.sigmoid(gate * config.gemm1_alpha) * (up + 1)
        out = F.linear(hidden, layer.w2_weight[expert]).float()
        total.index_add_(0, token, out * weights[token, choice].float().unsqueeze(-1))
    return total.to(x.dtype)
