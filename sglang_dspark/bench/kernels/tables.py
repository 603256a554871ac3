"""What the tables of both ops hold while they are benchmarked: scales, norm multipliers, cos and sin."""

from __future__ import annotations

import torch

# An fp8 pool has a scale for K and one for V, neither of them 1 and none so small that a value saturates.
K_SCALE, V_SCALE = 0.03, 0.05


def norm_multipliers(
    count: int, head_dim: int, generator: torch.Generator, device: str
) -> torch.Tensor:  # [count, D] fp32
    """1 + w of that many norms; the weights are bf16, as SGLang holds them."""
    weights = 0.3 * torch.randn(count, head_dim, generator=generator, device=device)
    return 1 + weights.to(torch.bfloat16).float()


def cos_sin(
    positions: int, rotary_dim: int, generator: torch.Generator, device: str
) -> torch.Tensor:  # [positions, R] fp32
    """The rotations of random angles, cos in the first half."""
    angles = torch.rand(positions, rotary_dim // 2, generator=generator, device=device) * 6.3
    return torch.cat((angles.cos(), angles.sin()), dim=1)
