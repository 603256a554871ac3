"""What a training forward returns, and the loss reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DSparkForwardOutput:
    """B sequences, N blocks a sequence, gamma rows a block, V tokens.

    Field names are AutoModel's (nemo_automodel.components.speculative.dspark.common), so that either loss reads
    either model's output.
    """

    draft_logits: torch.Tensor  # [B, N, gamma, V], Markov bias included
    target_ids: torch.Tensor  # [B, N, gamma] int64
    eval_mask: torch.Tensor  # [B, N, gamma] bool, the supervised rows
    block_keep_mask: torch.Tensor  # [B, N] bool, false for a block that only fills up the batch
    confidence_pred: torch.Tensor | None = None  # [B, N, gamma] fp32, before the sigmoid
    aligned_target_logits: torch.Tensor | None = None  # [B, N, gamma, V], what the target said for the same token
