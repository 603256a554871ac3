"""Norm weights as AITER's Gemma norms take them: w, to which the kernel adds 1."""

from __future__ import annotations

import torch

from sglang_dspark.ops.dispatch import NotCovered


def gemma_weights(
    multipliers: torch.Tensor,  # [..., D] fp32, 1 + w already formed
    dtype: torch.dtype,
) -> torch.Tensor:
    """The weights w in ``dtype``, [..., D]; raises `NotCovered` when 1 + w would not be the multiplier again.

    A checkpoint's bf16 weights always come back. Reads values: for binding, not for the hot path.
    """
    weights = (multipliers - 1).to(dtype)
    changed = int(((weights.float() + 1) != multipliers).sum())
    if changed:
        raise NotCovered([f"{changed} norm multipliers are not 1 + a weight in {dtype}, which is what AITER reads"])
    return weights.contiguous()
