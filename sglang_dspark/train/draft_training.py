"""Teaches a draft to guess its target: the three-term DSpark loss over cached outputs of that target.

The network and the loss are `sglang_dspark.reference`'s; here are the weights it starts from, its optimizer, and what
is measured. The embedding and the LM head stay the target's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sglang_dspark.reference import LossWeights, MiniMaxM3DSparkModel, Ratio, compute_dspark_loss
from sglang_dspark.train.feature_cache import FeatureCache
from sglang_dspark.train.metrics import Sums
from sglang_dspark.train.optimizers import make_optimizers
from sglang_dspark.train.teachers import Teacher


def new_draft(config: Mapping[str, Any], target: Teacher, seed: int) -> MiniMaxM3DSparkModel:
    """A draft with fresh weights and its target's tables."""
    draft = MiniMaxM3DSparkModel(config)
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * draft.config.draft.num_layers)
    for name, weight in draft.named_parameters():
        if weight.dim() == 2:
            std = 1 / math.sqrt(weight.shape[1])
            nn.init.normal_(
                weight, std=std / depth if "o_proj" in name or "down_proj" in name else std, generator=generator
            )
    with torch.no_grad():
        # No bias from the Markov head at first: it learns what the backbone lacks.
        draft.markov_head.markov_w2.weight.zero_()
        if draft.confidence_head is not None:
            draft.confidence_head.proj.weight.zero_()
            draft.confidence_head.proj.bias.zero_()
    draft.initialize_embeddings_and_head(embed_tokens=target.embed_tokens, lm_head=target.lm_head)
    return draft


class DraftObjective:
    """The three-term loss of random batches of a feature cache."""

    def __init__(
        self,
        draft: MiniMaxM3DSparkModel,
        cache: FeatureCache,
        batch: int,
        *,
        weights: LossWeights | None = None,
        decay_gamma: float | None = None,
        weight_decay: float = 0.01,
        optimizer: str = "adamw",
    ) -> None:
        """Prepare the optimizer.

        Args:
            draft: what learns.
            cache: its lessons; must hold the layers that the draft reads.
            batch: sequences a micro-batch, drawn with replacement.
            weights: of the loss's terms.
            decay_gamma: how fast later rows of a block count less; the block size by default.
            weight_decay: of the matrices.
            optimizer: see `optimizers`.
        """
        asked = (draft.target_layer_ids, draft.config.draft.hidden_size)
        found = (cache.facts.target_layer_ids, cache.facts.hidden_size)
        if asked != found:
            raise ValueError(
                f"the draft reads layers {list(asked[0])} of width {asked[1]}, the features in {cache.folder} are of "
                f"layers {list(found[0])} and width {found[1]}: make the features again for this draft"
            )
        self.module = draft
        self._cache, self._batch, self._weights = cache, batch, weights
        self._decay_gamma = decay_gamma or float(draft.block_size)
        # The confidence head is one row: Muon would only set its length.
        self.optimizers: Sequence[torch.optim.Optimizer] = make_optimizers(
            draft, optimizer, weight_decay, tables=("markov_w", "embed_tokens", "lm_head", "confidence_head")
        )
        draft_identity = repr(draft.config.draft) + f", {draft.num_anchors} anchors"
        terms = f"{weights or LossWeights()}, {self._decay_gamma}"
        self.identity: Mapping[str, str] = {
            **cache.identity,
            "draft": draft_identity,
            "objective": f"{batch} sequences, {terms}, {optimizer}, {weight_decay}",
        }

    def loss(self, generator: torch.Generator) -> tuple[torch.Tensor, Sums]:
        """One batch; the anchors are drawn from torch's own generator, which the loop has seeded."""
        rows = torch.randint(0, self._cache.sequences, (self._batch,), generator=generator)
        batch = self._cache.read(rows)
        outputs = self.module(batch.tokens, batch.features, batch.loss_mask, batch.last_hidden)
        result = compute_dspark_loss(outputs, decay_gamma=self._decay_gamma, weights=self._weights)
        sums: Sums = {
            "cross_entropy": _pair(result.cross_entropy),
            "distance": _pair(result.distance),
            "confidence": _pair(result.confidence),
            "accepted_length": _pair(result.accepted_length),
            "confidence_error": _pair(result.confidence_error),
        }
        positions = zip(result.acceptance.numerator.tolist(), result.acceptance.denominator.tolist(), strict=True)
        sums |= {f"acceptance_{row}": pair for row, pair in enumerate(positions, start=1)}
        return result.loss, sums


def _pair(ratio: Ratio) -> tuple[float, float]:
    return float(ratio.numerator), float(ratio.denominator)
