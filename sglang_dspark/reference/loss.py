"""The draft's training loss, and how well its blocks would be accepted, from the same pass.

Three terms, each a mean over supervised rows weighted by exp(-(k - 1) / gamma), k = 1 for a block's first row:

    cross entropy   -log q(x)                       0.1   the data's token
    distance        sum_v |q(v) - p(v)|             0.9   the target's whole distribution; twice the total variation
    confidence      BCE(c, 1 - distance / 2)        1.0   the confidence head against what will really be accepted

1 - distance / 2 is the probability that speculative sampling accepts a row's token (Leviathan et al. 2023, corollary
3.6), so the distance is the very thing the draft is for. No gradient reaches the target's logits, nor the draft through
the confidence term's goal.

Everything is first summed as (numerator, denominator): sums of several batches or machines add up to exactly the
mean over all rows, where means of means would not.

Semantics: nemo_automodel.components.speculative.dspark.loss (NVIDIA AutoModel 0.7.0); written anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from sglang_dspark.reference.output import DSparkForwardOutput
from sglang_dspark.reference.precision import at_least_float32

# Distances are computed over slices of about this many logits: at M3's 200,064 tokens a slice is 167 rows and its
# float32 probabilities 128 MiB each, however many rows the batch has.
SLICE_ELEMENTS = 2**25


@dataclass(frozen=True)
class LossWeights:
    """How much each term counts."""

    cross_entropy: float = 0.1
    distance: float = 0.9
    confidence: float = 1.0


@dataclass(frozen=True)
class Ratio:
    """A mean that is not divided yet. Scalars, or one entry for each row of a block."""

    numerator: torch.Tensor
    denominator: torch.Tensor

    def __add__(self, other: Ratio) -> Ratio:
        """The mean over both sets of rows."""
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator)

    @property
    def value(self) -> torch.Tensor:
        """The mean, 0 where nothing was counted. A nonzero denominator is at least 1: a block's first row weighs 1."""
        return self.numerator / self.denominator.clamp(min=1e-6)

    def detach(self) -> Ratio:
        """The same numbers without their history."""
        return Ratio(self.numerator.detach(), self.denominator.detach())


@dataclass(frozen=True)
class DSparkLoss:
    """The loss and what it is made of. Only `loss` carries gradients.

    acceptance: for each row of a block, the probability that its token is accepted given all before it were.
    accepted_length: the expected number of tokens a verify round yields, bonus included.
    confidence_error and confidence_bias: |c - acceptance| and c - acceptance, weighted as the loss is.
    What could not be measured (no target logits, no confidence head) is 0 / 0.
    """

    loss: torch.Tensor  # []
    cross_entropy: Ratio
    distance: Ratio
    confidence: Ratio
    acceptance: Ratio  # [gamma]
    accepted_length: Ratio
    confidence_error: Ratio
    confidence_bias: Ratio


def compute_dspark_loss(
    outputs: DSparkForwardOutput,
    *,
    decay_gamma: float | None = None,
    weights: LossWeights | None = None,
) -> DSparkLoss:
    """The three-term loss of one forward pass.

    Args:
        outputs: what the model returned.
        decay_gamma: row k of a block weighs exp(-(k - 1) / decay_gamma); None weighs all rows alike.
        weights: of the three terms; the defaults are 0.1, 0.9 and 1.0.

    Raises:
        ValueError: a term needs the target's logits and the outputs have none.
    """
    weights = weights or LossWeights()
    confidence_logits, target_logits = outputs.confidence_pred, outputs.aligned_target_logits
    if target_logits is None and (weights.distance > 0 or confidence_logits is not None):
        raise ValueError(
            "the distance and confidence terms need the target's logits, found none; "
            "pass target_last_hidden_states to the model"
        )
    row_weights = weigh_rows(outputs.eval_mask, decay_gamma)

    def mean(rows: torch.Tensor) -> Ratio:  # [B, N, gamma]
        return Ratio((rows * row_weights).sum(), row_weights.sum())

    cross_entropy = mean(cross_entropies(outputs.draft_logits, outputs.target_ids))
    nothing = Ratio(torch.zeros_like(row_weights[0, 0, 0]), torch.zeros_like(row_weights[0, 0, 0]))
    distance = confidence = accepted_length = error = bias = nothing
    by_row = torch.zeros_like(row_weights).sum((0, 1))
    acceptance = Ratio(by_row, by_row)
    if target_logits is not None:
        distances = probability_distances(outputs.draft_logits, target_logits.detach())
        distance = mean(distances)
        accepted = (1 - distances.detach() / 2).clamp(0, 1)
        acceptance, accepted_length = acceptance_sums(outputs, accepted)
        if confidence_logits is not None:
            confidence = mean(confidence_losses(confidence_logits, accepted))
            off = at_least_float32(confidence_logits.detach()).sigmoid() - accepted
            error, bias = mean(off.abs()), mean(off)
    loss = weights.cross_entropy * cross_entropy.value
    loss = loss + weights.distance * distance.value + weights.confidence * confidence.value
    terms = (cross_entropy.detach(), distance.detach(), confidence.detach())
    return DSparkLoss(loss, *terms, acceptance, accepted_length, error, bias)


def weigh_rows(eval_mask: torch.Tensor, decay_gamma: float | None) -> torch.Tensor:  # [B, N, gamma] bool -> fp32
    """What each row counts: nothing where it is not supervised, less the later it stands in its block."""
    weights = eval_mask.float()
    if decay_gamma is None:
        return weights
    if decay_gamma <= 0:
        raise ValueError(f"asked for decay_gamma {decay_gamma}; take a positive number, or None for no decay")
    steps = torch.arange(eval_mask.shape[-1], device=eval_mask.device)
    return weights * torch.exp(-steps / decay_gamma)


def cross_entropies(draft_logits: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
    """-log q(x) of each row. Logits [B, N, gamma, V], tokens [B, N, gamma]."""
    rows = at_least_float32(draft_logits).flatten(0, 2)
    return F.cross_entropy(rows, target_ids.flatten(), reduction="none").view_as(target_ids)


def probability_distances(draft_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """sum_v |q(v) - p(v)| of each row, both [B, N, gamma, V].

    Computed over slices that the backward pass computes again, so that no whole batch of probabilities is ever held.
    """
    draft, target = draft_logits.flatten(0, 2), target_logits.flatten(0, 2)
    rows = max(1, SLICE_ELEMENTS // draft.shape[-1])
    slices = zip(draft.split(rows), target.split(rows), strict=True)
    parts = [checkpoint(_distances, *pair, use_reentrant=False, preserve_rng_state=False) for pair in slices]
    return torch.cat(parts).view(draft_logits.shape[:-1])


def _distances(draft_logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:  # [T, V] twice -> [T]
    draft, target = (torch.softmax(at_least_float32(logits), dim=-1) for logits in (draft_logits, target_logits))
    return (draft - target).abs().sum(-1)


def confidence_losses(confidence_logits: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:  # [B, N, gamma] each
    """The binary cross entropy of each row's confidence against its true probability of acceptance."""
    logits = at_least_float32(confidence_logits)
    return F.binary_cross_entropy_with_logits(logits, accepted.to(logits.dtype), reduction="none")


def acceptance_sums(outputs: DSparkForwardOutput, accepted: torch.Tensor) -> tuple[Ratio, Ratio]:
    """The acceptance of each row of a block, and the expected tokens of a round: 1 + a_1 + a_1 a_2 + ..."""
    counted = outputs.eval_mask.to(accepted.dtype)
    rows = accepted * counted
    acceptance = Ratio(rows.sum((0, 1)), counted.sum((0, 1)))
    blocks = (outputs.block_keep_mask & outputs.eval_mask.any(-1)).to(accepted.dtype)
    lengths = 1 + rows.cumprod(-1).sum(-1)
    return acceptance, Ratio((lengths * blocks).sum(), blocks.sum())
