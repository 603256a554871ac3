"""What a run is about: ops, backends, presets, token counts and pool types, checked against what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from sglang_dspark.bench.kernels import context_kv, qk_norm_rope
from sglang_dspark.bench.kernels.op import OpBench, Shape
from sglang_dspark.bench.presets import PRESETS, QUICK_PRESETS, QUICK_TOKENS, TOKENS, Preset
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES
from sglang_dspark.platforms import Platform

BENCHES = {bench.name: bench for bench in (context_kv.BENCH, qk_norm_rope.BENCH)}


class SelectionError(ValueError):
    """Something was asked for that there is not, or that nothing here covers."""


@dataclass(frozen=True)
class Selection:
    """``backends`` and ``refused`` are by op; the reasons in ``refused`` are those for a bf16 pool."""

    benches: tuple[OpBench, ...]
    presets: tuple[Preset, ...]
    tokens: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    backends: dict[str, tuple[str, ...]]
    refused: dict[str, dict[str, str]] = field(default_factory=dict)

    def presets_of(self, bench: OpBench) -> tuple[Preset, ...]:
        """The presets in which the op has shapes of its own."""
        first: dict[object, Preset] = {}
        for preset in self.presets:
            first.setdefault(bench.uses(preset), preset)
        return tuple(first.values())

    def shapes(self, bench: OpBench) -> tuple[Shape, ...]:
        """Every shape of the op: bf16 pools first, then fp8."""
        presets = self.presets_of(bench)
        return tuple(Shape(p, tokens, dtype) for dtype in self.dtypes for p in presets for tokens in self.tokens)

    def notes(self) -> list[str]:
        """Which presets an op leaves out, and why."""
        found = []
        for bench in self.benches:
            kept = {bench.uses(preset): preset for preset in reversed(self.presets)}
            found += [
                f"{bench.name}: {preset.name} has the shapes of {kept[bench.uses(preset)].name}, which is run"
                for preset in self.presets
                if kept[bench.uses(preset)] is not preset
            ]
        return found


def select(
    platform: Platform,
    *,
    quick: bool = False,
    ops: Sequence[str] = (),
    backends: Sequence[str] = (),
    presets: Sequence[str] = (),
    tokens: Sequence[int] = (),
) -> Selection:
    """The selection of a run; empty sequences mean all, with ``quick`` fewer.

    Raises:
        SelectionError: a name that is not known, or backends of which none covers any of the ops here.
    """
    benches = tuple(BENCHES[name] for name in _known("op", ops or BENCHES, BENCHES))
    named = _known("preset", presets or (QUICK_PRESETS if quick else PRESETS), PRESETS)
    every = {backend.name for bench in BENCHES.values() for backend in bench.op.backends}
    asked = _known("backend", backends, every)
    if any(count < 1 for count in tokens):
        raise SelectionError(f"asked for {min(tokens)} tokens: name counts from 1 on")
    found = Selection(
        benches,
        tuple(PRESETS[name] for name in named),
        tuple(tokens) or (QUICK_TOKENS if quick else TOKENS),
        (torch.bfloat16, FP8_DTYPES[platform.fp8_format]),
        {},
    )
    for bench in benches:
        # One that the platform does not offer may be named all the same, as a server's variable may.
        usable, refused = _usable(bench, platform, asked or platform.backends(bench.name), found.presets[0])
        found.backends[bench.name], found.refused[bench.name] = usable, refused
    if asked and not any(found.backends.values()):
        reasons = [f"{op}: {name}: {why}" for op, refused in found.refused.items() for name, why in refused.items()]
        raise SelectionError(
            f"asked for {', '.join(asked)} on {platform.name} ({platform.arch}), and none of them runs here: "
            f"{' | '.join(reasons)}. This platform offers {', '.join(platform.backends(benches[0].name))}"
        )
    return found


def _usable(
    bench: OpBench, platform: Platform, names: Iterable[str], preset: Preset
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Which backends cover a bf16 pool here (compiled by now, where they are), and why the others do not."""
    spec = bench.spec(Shape(preset, 1, torch.bfloat16))
    known = {backend.name: backend for backend in bench.op.backends}
    refused = {name: "the op has no such backend" for name in names if name not in known}
    for name in names:
        if name in known and (reasons := known[name].refusals(platform, spec)):
            refused[name] = "; ".join(reasons)
    return tuple(name for name in names if name not in refused), refused


def _known(what: str, names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    known, found = tuple(known), tuple(dict.fromkeys(names))
    if unknown := [name for name in found if name not in known]:
        raise SelectionError(f"no {what} {', '.join(unknown)}: known are {', '.join(sorted(known))}")
    return found
