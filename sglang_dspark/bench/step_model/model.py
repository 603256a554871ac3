"""A step without speculation, a round with it on SGLang's own path and on ours, and what follows from their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import draft_stages, target_stages
from .case import Case
from .draft_stages import OURS, SGLANG
from .prices import Prices
from .stages import Stage

PLAIN = "no speculation"
PATHS = (PLAIN, SGLANG, OURS)


@dataclass(frozen=True)
class Priced:
    """A stage of a path and its time."""

    stage: Stage
    us: float
    measured: bool


@dataclass(frozen=True)
class Step:
    """All stages of one path, priced: a step without speculation, or a round with it."""

    path: str
    stages: Sequence[Priced]

    @property
    def us(self) -> float:
        """Its time."""
        return sum(priced.us for priced in self.stages)

    @property
    def launches(self) -> int:
        """Kernels it launches, and collectives."""
        return sum(priced.stage.launches + priced.stage.collectives for priced in self.stages)

    @property
    def moved_bytes(self) -> float:
        """Bytes it moves in one rank's memory."""
        return sum(priced.stage.moved_bytes for priced in self.stages)


def step(case: Case, prices: Prices, path: str) -> Step:
    """One path's stages with their times; stages of one name are added up."""
    if path == PLAIN:
        stages = target_stages.forward(case, 1)
    else:
        stages = [*target_stages.forward(case, case.window), *draft_stages.beside_target(case, path)]
    found: dict[tuple[str, str], Priced] = {}
    for stage in stages:
        us, key = prices.time_us(stage, path), (stage.part, stage.name)
        priced = Priced(stage, us, prices.is_measured(stage, path))
        found[key] = _added(found[key], priced) if key in found else priced
    return Step(path, tuple(found.values()))


def break_even(plain: Step, speculative: Step) -> float:
    """The accepted length (bonus token included) above which a round beats the steps it replaces."""
    return speculative.us / plain.us


def speedup(plain: Step, speculative: Step, accepted_length: float) -> float:
    """Tokens a second with speculation, over those without."""
    return accepted_length * plain.us / speculative.us


def _added(one: Priced, other: Priced) -> Priced:
    a, b = one.stage, other.stage
    stage = Stage(
        a.part,
        a.name,
        launches=a.launches + b.launches,
        moved_bytes=a.moved_bytes + b.moved_bytes,
        operations=a.operations + b.operations,
        narrow=a.narrow or b.narrow,
        wire_bytes=a.wire_bytes + b.wire_bytes,
        collectives=a.collectives + b.collectives,
        eager=a.eager,
    )
    return Priced(stage, one.us + other.us, one.measured and other.measured)
