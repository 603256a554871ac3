"""Partial NeoX rotary embedding whose frequencies stay float32 on whatever device the model goes to.

`model.to(bfloat16)` casts every buffer. Frequencies rounded to bf16 dephase with the position: at position 10,000 the
angles are off by tens of radians, nothing raises, and acceptance falls as the context grows.

Source: Su et al. 2021, "RoFormer", equation 15; pairs (i, i + rotary_dim / 2) as in GPT-NeoX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sglang_dspark.reference.precision import at_least_float32


class RotaryEmbedding(nn.Module):
    """Gives the cos and sin of any positions; nothing of it is in the state dict, all of it follows from the config."""

    inverse_frequencies: torch.Tensor  # [rotary_dim / 2] fp32

    def __init__(self, rotary_dim: int, theta: float) -> None:
        super().__init__()
        self.rotary_dim, self.theta = rotary_dim, theta
        self.register_buffer("inverse_frequencies", self._compute().to(torch.get_default_device()), persistent=False)

    def _compute(self) -> torch.Tensor:
        # On the CPU always: a device's own pow may differ in the last bit, and the position multiplies that.
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32, device="cpu") / self.rotary_dim
        return 1.0 / self.theta**exponents

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> RotaryEmbedding:
        """Follow a move to another device and undo what it did to the values (a cast, or memory left unset)."""
        super()._apply(fn, recurse)
        device = self.inverse_frequencies.device
        if device.type != "meta":
            self.inverse_frequencies = self._compute().to(device)
        return self

    @torch.no_grad()
    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # positions [B, T] int64
        """The cos and sin at these positions, each [B, T, rotary_dim / 2] fp32."""
        angles = positions.float().unsqueeze(-1) * self.inverse_frequencies
        return angles.cos(), angles.sin()


def rotate(
    x: torch.Tensor,  # [B, T, heads, D]
    cos: torch.Tensor,  # [B, T, R / 2] fp32
    sin: torch.Tensor,  # [B, T, R / 2] fp32
) -> torch.Tensor:
    """Rotate the first R channels of every head, in float32 with one rounding at the end; the rest pass through."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned, passed = x[..., : 2 * half], x[..., 2 * half :]
    first, second = at_least_float32(turned).split(half, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([rotated.to(x.dtype), passed], dim=-1)
