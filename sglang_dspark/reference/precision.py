"""The precision that norms, activations and rotations compute in: float32 at least, whatever the weights are in."""

from __future__ import annotations

import torch


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or in float64 where it came so (gradient checks)."""
    return x if x.dtype == torch.float64 else x.float()
