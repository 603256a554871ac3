"""Rounds that are drawn at random, of a head whose error is known."""

from __future__ import annotations

import torch

from sglang_dspark.evaluate.samples import Samples


def drawn(count: int, logits: torch.Tensor, truth: torch.Tensor, seed: int = 0) -> Samples:
    """Rounds whose proposals are kept with the chances of `truth`, and whose head says `logits`; [gamma] each."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(count, len(logits), generator=generator)
    kept = (torch.rand(count, len(logits), generator=generator) < (truth + spread).sigmoid()).int().cumprod(1).sum(1)
    return Samples(logits + spread * (logits / truth), kept)
