"""How far a confidence head's numbers can be believed, before and after a temperature for each position.

The scheduler reads survival, the chance that a proposal is kept with all before it: the running product of the head's
chances. Its calibration error (ECE) is the mean distance between what was predicted and what happened, over 15 bins
of equal width, each weighted by its share of the rounds (Naeini et al. 2015). Sequential temperature scaling (DSpark
paper, section 3.2.1) divides each position's logit by a temperature of its own, chosen from left to right. The choice
is SGLang's fitter's (`fitting`); here it is judged, on rounds that the fit has not seen.

The error alone can be had cheaply: a head that always says the average has none. The Brier score (1950), the mean
squared distance between what was predicted of a round and what happened, falls only when the numbers are worth more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sglang_dspark.evaluate.samples import Samples

BINS = 15


@dataclass(frozen=True)
class Position:
    """One position of the block: means over the rounds, and the calibration errors of its survival."""

    temperature: float
    observed: float
    predicted_before: float
    predicted_after: float
    ece_before: float
    ece_after: float
    brier_before: float
    brier_after: float
    auc: float | None  # how well the scores before scaling rank; None where all outcomes are alike

    @property
    def improvement(self) -> float:
        """By how much the error fell."""
        return self.ece_before - self.ece_after


def survival(logits: torch.Tensor, temperatures: Sequence[float] | None = None) -> torch.Tensor:  # [N, gamma] fp64
    """The chance of each proposal to be kept with all before it."""
    logits = logits.double()
    if temperatures is not None:
        logits = logits / torch.tensor(temperatures, dtype=torch.float64)
    return logits.sigmoid().cumprod(1)


def calibration_error(predicted: torch.Tensor, outcomes: torch.Tensor, bins: int = BINS) -> float:  # [N] each
    """The expected calibration error of one position."""
    place = (predicted * bins).long().clamp(0, bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, predicted.double() - outcomes.double())
    return float(gap.abs().sum() / len(predicted))


def brier_score(predicted: torch.Tensor, outcomes: torch.Tensor) -> float:  # [N] each
    """The mean squared distance of one position's predictions from its outcomes."""
    return float((predicted.double() - outcomes.double()).square().mean())


def judge(samples: Samples, temperatures: Sequence[float]) -> list[Position]:
    """Every position's calibration on these rounds, without temperatures and with them."""
    before, after, outcomes = survival(samples.logits), survival(samples.logits, temperatures), samples.outcomes
    return [
        Position(
            temperature=temperatures[i],
            observed=float(outcomes[:, i].mean()),
            predicted_before=float(before[:, i].mean()),
            predicted_after=float(after[:, i].mean()),
            ece_before=calibration_error(before[:, i], outcomes[:, i]),
            ece_after=calibration_error(after[:, i], outcomes[:, i]),
            brier_before=brier_score(before[:, i], outcomes[:, i]),
            brier_after=brier_score(after[:, i], outcomes[:, i]),
            auc=ranking(before[:, i], outcomes[:, i]),
        )
        for i in range(samples.gamma)
    ]


def ranking(scores: torch.Tensor, outcomes: torch.Tensor) -> float | None:  # [N] each
    """How often a kept proposal scores above one that was not kept, ties by half: the area under the ROC curve."""
    kept, lost = scores[outcomes > 0.5], scores[outcomes <= 0.5].sort().values
    if not len(kept) or not len(lost):
        return None
    below = torch.searchsorted(lost, kept, right=False).double()
    not_above = torch.searchsorted(lost, kept, right=True).double()
    return float((below + not_above).sum() / (2 * len(kept) * len(lost)))


def reliability(predicted: torch.Tensor, outcomes: torch.Tensor, bins: int = BINS) -> list[tuple[float, float, int]]:
    """The filled bins of one position: mean prediction, share kept, rounds."""
    place = (predicted * bins).long().clamp(0, bins - 1)
    filled = []
    for index in range(bins):
        inside = place == index
        if count := int(inside.sum()):
            filled.append((float(predicted[inside].mean()), float(outcomes[inside].mean()), count))
    return filled
