"""How well the confidence head knows what will be accepted, on live traffic: counts by position and predicted bin.

The survival of position k is the product of the confidences up to it: the probability that the proposal at k is
accepted. It is what SGLang's planner spends its verify budget on, what `--speculative-dspark-confidence-sts-path`
calibrates, and what SGLang's own offline probe measures (speculative/dspark_components/dspark_observability.py). Three
sums a cell are enough for the expected calibration error: how many, what was predicted, what came true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """Collects sampled steps as they are and sums them up only when asked: a step costs a list entry."""

    def __init__(self) -> None:
        """Nothing collected yet."""
        self._steps: list[tuple[torch.Tensor, list[int], list[int]]] = []

    def add(
        self,
        confidence: torch.Tensor,  # [R, gamma] on the host
        proposed: Sequence[int],  # R
        accepted: Sequence[int],  # R
    ) -> None:
        """Take the rounds of one step."""
        self._steps.append((confidence, list(proposed), list(accepted)))

    def take(self) -> Iterator[Cell]:
        """The cells with anything in them, and start over."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        survival = torch.cat([step[0].float() for step in steps]).cumprod(1)  # [R, gamma]
        proposed = torch.tensor([n for step in steps for n in step[1]])[:, None]  # [R, 1]
        accepted = torch.tensor([n for step in steps for n in step[2]])[:, None]
        gamma = survival.shape[1]
        position = torch.arange(gamma).expand_as(survival)
        broken = survival.isnan()
        survival = survival.masked_fill(broken, 0.0).clamp(0.0, 1.0)
        bins = (survival * BINS).long().clamp_(max=BINS - 1).masked_fill_(broken, NOT_A_NUMBER)
        seen = position < proposed
        cell = (position * (BINS + 1) + bins)[seen]
        size = gamma * (BINS + 1)
        count = torch.bincount(cell, minlength=size)
        predicted = torch.bincount(cell, survival[seen].double(), minlength=size)
        right = torch.bincount(cell, (position < accepted)[seen].double(), minlength=size)
        for index in count.nonzero().flatten().tolist():
            place, which = divmod(index, BINS + 1)
            yield Cell(place + 1, which, int(count[index]), float(predicted[index]), int(right[index]))
