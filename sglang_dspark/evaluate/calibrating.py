"""One calibration from its samples to its results: split, fit, judge on the other half, write down."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sglang_dspark.bench.rows import Run
from sglang_dspark.evaluate.answer import Settings
from sglang_dspark.evaluate.calibration import Position, judge, reliability, survival
from sglang_dspark.evaluate.fitting import fit_temperatures
from sglang_dspark.evaluate.results import SCHEMA
from sglang_dspark.evaluate.samples import Samples, join

# Parts of a server's collected rounds.
PARTS = 64


@dataclass(frozen=True)
class Calibration:
    """Temperatures, and how well they do on rounds that they were not fitted on."""

    fitted_on: int
    held_out: Samples
    positions: list[Position]

    @property
    def temperatures(self) -> list[float]:
        """One a position."""
        return [one.temperature for one in self.positions]


def calibrate(fit: Samples, held_out: Samples) -> Calibration:
    """Fit on some rounds, judge on others.

    Raises:
        ValueError: there are no held-out rounds.
        FitError: too few rounds to fit, or SGLang's fitter failed.
    """
    if not len(held_out):
        raise ValueError("asked for a calibration, found no rounds to judge it by: give more prompts or samples")
    temperatures = fit_temperatures(fit)
    return Calibration(len(fit), held_out, judge(held_out, temperatures))


def halves(parts: Sequence[Samples], seed: int = 0) -> tuple[Samples, Samples]:
    """Rounds to fit on, and rounds to judge by: whole parts on either side, at random.

    At random, because data sets and traffic have an order, and halves of an order are of two kinds. Whole parts,
    because the rounds of one answer are alike: on both sides they would judge what they were fitted on.

    Raises:
        ValueError: fewer than two parts.
    """
    if len(parts) < 2:
        raise ValueError(
            f"asked for two halves of {len(parts)} prompts; give two or more: one half fits, the other judges"
        )
    order = list(range(len(parts)))
    random.Random(seed).shuffle(order)
    middle = (len(parts) + 1) // 2
    fit, held_out = sorted(order[:middle]), sorted(order[middle:])
    return join([parts[index] for index in fit]), join([parts[index] for index in held_out])


def cut(samples: Samples, parts: int = PARTS) -> list[Samples]:
    """Collected rounds as parts that lie together in time: few answers reach into two of them."""
    logits, kept = samples.logits.tensor_split(parts), samples.kept.tensor_split(parts)
    return [Samples(*pair) for pair in zip(logits, kept, strict=True) if len(pair[1])]


def calibration_table(
    run: Run, source: Mapping[str, Any], settings: Settings | None, data: str, result: Calibration
) -> dict[str, Any]:
    """The JSON of one `eval calibrate`; `source` is the judge's description, or where the samples came from."""
    before, after = (survival(result.held_out.logits, t) for t in (None, result.temperatures))
    outcomes = result.held_out.outcomes
    positions = [
        asdict(one)
        | {"reliability_before": reliability(before[:, i], outcomes[:, i])}
        | {"reliability_after": reliability(after[:, i], outcomes[:, i])}
        for i, one in enumerate(result.positions)
    ]
    count = len(positions)
    return {
        "schema": SCHEMA,
        "kind": "calibration",
        "run": asdict(run),
        "judge": dict(source),
        "settings": None if settings is None else asdict(settings),
        "proposals": count,
        "data": data,
        "fitted_rounds": result.fitted_on,
        "held_out_rounds": len(result.held_out),
        "mean_ece_before": sum(one.ece_before for one in result.positions) / count,
        "mean_ece_after": sum(one.ece_after for one in result.positions) / count,
        "positions": positions,
    }
