"""How well the confidence head knows what will be accepted, on live traffic: counts by position and predicted bin.

The survival of position k is the product of the confidences up to it: the probability that the proposal at k is
accepted. It is what SGLang's planner spends its verify budget on, what `--speculative-dspark-confidence-sts-path`
calibrates, and what SGLang's own offline probe measures (speculative/dspark_components/dspark_observability.py). Three
sums a cell are enough for the expected calibration error: how many, what was predicted, what came true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

BINS = 10
# The bin of predictions that are no number: a broken head must show, not vanish.
NOT_A_NUMBER = BINS


@dataclass(frozen=True)
class Cell:
    """One position and bin: proposals seen, the sum of their predicted survivals, and how many survived."""

    position: int
    bin: int
    count: int
    predicted: float
    accepted: int


class SurvivalBins:
    """Sums by position and bin of the sampled steps since the last `take`.

    In NumPy, on the scheduler's own thread: for so few numbers torch's operators, and its threads above all, take
    longer than the work.
    """

    def __init__(self) -> None:
        """Nothing collected yet."""
        self._sums: np.ndarray | None = None  # [3, gamma * (BINS + 1)]: seen, their predicted survival, survived

    def add(
        self,
        confidence: torch.Tensor,  # [R, gamma] on the host
        proposed: Sequence[int],  # R
        accepted: Sequence[int],  # R
    ) -> None:
        """Take the rounds of one step."""
        survival = confidence.double().numpy().cumprod(axis=1)
        gamma = survival.shape[1]
        size = gamma * (BINS + 1)
        if self._sums is None:
            self._sums = np.zeros((3, size))
        broken = np.isnan(survival)
        survival = np.where(broken, 0.0, survival).clip(0.0, 1.0)
        bins = np.where(broken, NOT_A_NUMBER, np.minimum((survival * BINS).astype(int), BINS - 1))
        position = np.arange(gamma)
        seen = position < np.asarray(proposed)[:, None]
        cell = (position * (BINS + 1) + bins)[seen]
        survived = (position < np.asarray(accepted)[:, None])[seen]
        for total, weights in zip(self._sums, (None, survival[seen], survived), strict=True):
            total += np.bincount(cell, weights, minlength=size)

    def take(self) -> Iterator[Cell]:
        """The cells with anything in them, and start over."""
        sums, self._sums = self._sums, None
        if sums is None:
            return
        for index in sums[0].nonzero()[0].tolist():
            place, which = divmod(index, BINS + 1)
            count, predicted, survived = sums[:, index].tolist()
            yield Cell(place + 1, which, int(count), predicted, int(survived))
