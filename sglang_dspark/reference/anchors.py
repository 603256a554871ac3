"""Where a training sequence is cut into draft blocks, and which of a block's rows are supervised.

An anchor is a token the target has already produced; row k of its block (0-based) predicts the token k + 1 after it.
A block is worth training only if its anchor and its first target are supervised. Later rows count while the targets
stay inside the sequence and supervised without a gap: a draft token after a wrong one is never looked at.

Semantics and random draws: nemo_automodel.components.speculative.dspark.common (NVIDIA AutoModel 0.7.0), so that one
seed gives one set of anchors in both; written anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# B sequences, S tokens, N anchors a sequence, gamma rows a block.


@dataclass(frozen=True)
class Blocks:
    """The draft blocks of a batch. A block with `keep` false is padding: its anchor is 0 and nothing of it counts."""

    anchors: torch.Tensor  # [B, N] int64, ascending, then the padding's zeros
    keep: torch.Tensor  # [B, N] bool
    label_positions: torch.Tensor  # [B, N, gamma] int64, clamped into the sequence; 0 in padding
    supervised: torch.Tensor  # [B, N, gamma] bool

    @property
    def row_positions(self) -> torch.Tensor:  # [B, N * gamma] int64
        """The true position of every row: its anchor's, and one more for each mask token."""
        steps = torch.arange(self.label_positions.shape[-1], device=self.anchors.device)
        return (self.anchors.unsqueeze(-1) + steps).flatten(1)


def sample_anchors(loss_mask: torch.Tensor, num_anchors: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw up to N anchors a sequence, without replacement, from the positions that may be one.

    Args:
        loss_mask: [B, S], above 0.5 where a token is supervised.
        num_anchors: N.

    Returns:
        The anchors [B, N], ascending and then zeros, and which of them are real [B, N].
    """
    enabled = loss_mask > 0.5
    allowed = enabled[:, :-1] & enabled[:, 1:]  # the anchor, and the first token it predicts
    batch, candidates = allowed.shape
    anchors = torch.zeros(batch, num_anchors, dtype=torch.long, device=loss_mask.device)
    if candidates == 0:
        return anchors, anchors.bool()
    lots = torch.rand(batch, candidates, device=loss_mask.device).masked_fill(~allowed, torch.inf)
    drawn = lots.argsort(dim=1)[:, :num_anchors]
    real = allowed.gather(1, drawn)
    behind_all = candidates  # sorts the positions that may not be anchors after those that may
    drawn = drawn.masked_fill(~real, behind_all).sort(dim=1).values
    width = drawn.shape[1]
    keep = torch.zeros_like(anchors, dtype=torch.bool)
    keep[:, :width] = drawn < behind_all
    anchors[:, :width] = drawn.masked_fill(drawn == behind_all, 0)
    return anchors, keep


def cut_blocks(loss_mask: torch.Tensor, num_anchors: int, block_size: int) -> Blocks:
    """Sample anchors and work out the rows of their blocks. loss_mask: [B, S]."""
    anchors, keep = sample_anchors(loss_mask, num_anchors)
    length = loss_mask.shape[1]
    steps = torch.arange(1, block_size + 1, device=loss_mask.device)
    wanted = anchors.unsqueeze(-1) + steps  # [B, N, gamma]
    positions = wanted.clamp(max=length - 1).masked_fill(~keep.unsqueeze(-1), 0)
    enabled = (loss_mask > 0.5).gather(1, positions.flatten(1)).view_as(positions)
    counted = enabled & (wanted < length) & keep.unsqueeze(-1)
    return Blocks(anchors, keep, positions, counted.int().cumprod(-1).bool())
