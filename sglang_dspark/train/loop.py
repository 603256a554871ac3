"""The training loop that target and draft share: accumulation, schedule, clipping, metrics, resuming to the last bit.

Everything random in a micro-batch, its data and its draws, follows from (seed, step, micro-batch). So the state of a
run is its step, its weights and its optimizers, and a resumed run cannot drift from one that never stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from sglang_dspark.train import digest_file
from sglang_dspark.train.metrics import MetricsFile, Sums, ratios

STATE_NAME = "state.pt"
METRICS_NAME = "metrics.jsonl"


@dataclass(frozen=True)
class LoopSettings:
    """What decides the course of a run, beside its data."""

    steps: int
    learning_rate: float
    accumulate: int = 1
    seed: int = 0
    warmup_share: float = 0.05
    # The rate stays, then falls linearly to zero over this share of the steps.
    decay_share: float = 0.5
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a run that cannot be."""
        if self.steps < 1 or self.accumulate < 1:
            raise ValueError(
                f"asked for {self.steps} steps of {self.accumulate} micro-batches: take at least 1 of each"
            )

    def rate(self, step: int) -> float:
        """The share of the learning rate that holds in this step."""
        rise = (step + 1) / max(1.0, self.warmup_share * self.steps)
        fall = (self.steps - step) / max(1.0, self.decay_share * self.steps)
        return min(1.0, rise, fall)

    def micro_seed(self, step: int, micro: int) -> int:
        """The seed of one micro-batch."""
        digest = hashlib.sha256(f"{self.seed}/{step}/{micro}".encode()).digest()
        return int.from_bytes(digest[:7], "big")


class Objective(Protocol):
    """What is trained, and on what."""

    optimizers: Sequence[torch.optim.Optimizer]
    # Names the data and the model, so that a state is not resumed on others.
    identity: Mapping[str, str]

    @property
    def module(self) -> nn.Module:
        """The model."""

    def loss(self, generator: torch.Generator) -> tuple[torch.Tensor, Sums]:
        """One micro-batch, drawn with the generator: its loss and its (numerator, denominator) sums."""


class Progress(Protocol):
    """Told after each step; tqdm's bar fits behind it."""

    def __call__(self, step: int, steps: int, values: Mapping[str, float]) -> None:
        """Show one step."""


def train(
    objective: Objective,
    settings: LoopSettings,
    folder: Path,
    *,
    save_every: int = 100,
    stop_after: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Run from the state in `folder`, or from the start, to the last step; the step reached.

    Args:
        objective: the model, its optimizers and its loss; changed in place.
        settings: must be those of the state that is resumed.
        folder: holds the state and the metrics.
        save_every: steps between two states; the last step always writes one.
        stop_after: end early at this step, with a state, as an interrupted run would.
        progress: told after each step.
    """
    rates = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in objective.optimizers]
    start = _resume(objective, settings, folder / STATE_NAME)
    last = min(settings.steps, stop_after or settings.steps)
    objective.module.train()
    with MetricsFile(folder / METRICS_NAME, start) as metrics:
        for step in range(start, last):
            values = _step(objective, settings, step, rates)
            metrics.write(step, values)
            if progress:
                progress(step, settings.steps, values)
            if (step + 1) % save_every == 0 or step + 1 == last:
                metrics.flush()
                _save(objective, settings, folder / STATE_NAME, step + 1)
    return max(start, last)


def _step(objective: Objective, settings: LoopSettings, step: int, rates: list[list[float]]) -> dict[str, float]:
    total: Sums = {}
    loss_sum = 0.0
    for micro in range(settings.accumulate):
        seed = settings.micro_seed(step, micro)
        torch.manual_seed(seed)
        loss, sums = objective.loss(torch.Generator().manual_seed(seed))
        (loss / settings.accumulate).backward()
        loss_sum += float(loss.detach()) / settings.accumulate
        for name, (numerator, denominator) in sums.items():
            old = total.get(name, (0.0, 0.0))
            total[name] = (old[0] + numerator, old[1] + denominator)
    norm = float(nn.utils.clip_grad_norm_(objective.module.parameters(), settings.clip_norm))
    for optimizer, base_rates in zip(objective.optimizers, rates, strict=True):
        for group, base in zip(optimizer.param_groups, base_rates, strict=True):
            group["lr"] = base * settings.learning_rate * settings.rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    rate = settings.learning_rate * settings.rate(step)
    return {"loss": loss_sum, "gradient_norm": norm, "learning_rate": rate, **ratios(total)}


def _save(objective: Objective, settings: LoopSettings, path: Path, step: int) -> None:
    state = {
        "step": step,
        "settings": asdict(settings),
        "identity": dict(objective.identity),
        "module": objective.module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in objective.optimizers],
    }
    digest_file.save(path, state)


def _resume(objective: Objective, settings: LoopSettings, path: Path) -> int:
    if not path.exists():
        return 0
    state = digest_file.load(path)
    asked = {**asdict(settings), **objective.identity}
    found = {**state["settings"], **state["identity"]}
    differing = [
        f"{name}: asked for {asked.get(name)!r}, the state has {found.get(name)!r}"
        for name in sorted(asked.keys() | found.keys())
        if asked.get(name) != found.get(name)
    ]
    if differing:
        raise ValueError(
            f"the run in {path.parent} was started otherwise; resume it as it was or name an empty folder:\n  - "
            + "\n  - ".join(differing)
        )
    objective.module.load_state_dict(state["module"])
    for optimizer, stored in zip(objective.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(stored)
    return int(state["step"])
