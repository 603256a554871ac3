"""A backend held to the law, from graphs, wherever the package is installed.

A graph is captured with one set of inputs, then replayed with others, in place: a kernel that reads an address, a size
or a commit length at capture instead of at replay fails there. The repository's parity suite (`parity.py`) has far more
cases; a wheel does not carry it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_dspark.bench.kernels.op import Call, Inputs, OpBench, ParityFailed, Shape, Work, Written, bits
from sglang_dspark.bench.kernels.stopwatch import Machine
from sglang_dspark.bench.presets import Preset
from sglang_dspark.ops.dispatch import NoBackend
from sglang_dspark.platforms import Platform

LAW_TOKENS = (1, 7, 48)
LAW_SLOTS, LAW_POSITIONS = 320, 97
FEWEST = 4  # elements that may differ whatever their share
# One step where the norm's rounding flips and one where the rotation's does, each of both rotary partners; a step is at
# most 2^-7 of a bf16 value, and 2^-3 of an 8-bit one.
STEPS = {2: 2.0**-5, 1: 2.0**-3}


@dataclass(frozen=True)
class Tolerance:
    """What a backend may differ in: a share of Q's and K's elements, and so many times the steps above in each.

    ``fp8_values_round`` says that V of an fp8 pool may differ as well.
    """

    share: float
    times_steps: float
    fp8_values_round: bool


# The order of a sum shows in about one element of 10,000 (tests/parity/bounds.py).
OURS = Tolerance(1e-3, 1.0, False)
# AITER's functions have other rounding points, and multiply with a scale's reciprocal (ops/*/aiter*.py has the bounds).
TOLERANCES = {"aiter": Tolerance(1.0, 2.0, True)}


def tolerance_of(backend: str) -> Tolerance:
    """The tolerance of one of our backends."""
    return TOLERANCES.get(backend, OURS)


def check(
    bench: OpBench,
    platform: Platform,
    backend: str,
    presets: Sequence[Preset],
    dtypes: Sequence[torch.dtype],
    machine: Machine,
    device: str,
) -> int:
    """Hold a backend to the law on every small shape that it covers; returns how many calls were compared.

    Raises:
        ParityFailed: it does not follow the law, or a call of it cannot be captured.
    """
    compared = 0
    for shape in (Shape(preset, tokens, dtype) for preset in presets for dtype in dtypes for tokens in LAW_TOKENS):
        work = bench.build(shape, device, LAW_SLOTS, LAW_POSITIONS, sets=1)
        try:
            call = bench.bind(platform, work, backend)
        except NoBackend:
            continue
        for extra in bench.extra_rows(shape, device):
            what = f"{backend}, {bench.name} {shape}" + (" with commit lengths" if extra else "")
            try:
                compared += _replays(bench, work, call, extra, machine, what, tolerance_of(backend))
            except RuntimeError as error:
                if isinstance(error, ParityFailed):
                    raise
                raise ParityFailed(f"{what}: cannot be captured or replayed: {error}") from error
    return compared


def _replays(
    bench: OpBench,
    work: Work,
    call: Call,
    extra: tuple[torch.Tensor, ...],
    machine: Machine,
    what: str,
    tolerance: Tolerance,
) -> int:
    given = work.sets[0]
    rows = (*given.rows, *extra)
    pools = [one.tensor for one in bench.written(work, given) if one.by_slot]
    _scramble(pools)
    first = [pool.clone() for pool in pools]
    changes = list(_changes(given, extra))
    replay = machine.captured(partial(call, *rows))
    for number, changed in enumerate(changes):
        for tensor, value in zip((*rows, *pools), (*changed, *first), strict=True):
            bits_of(tensor).copy_(bits_of(value))
        expected_work, expected = on_cpu(work), tuple(row.cpu().clone() for row in rows)
        replay()
        machine.wait()
        bench.reference(expected_work.spec, expected_work.tables, *expected)
        expected_inputs = dataclasses.replace(expected_work.sets[0], rows=expected[: len(given.rows)])
        for found, wanted in zip(
            bench.written(on_cpu(work), on_cpu_inputs(given)),
            bench.written(expected_work, expected_inputs),
            strict=True,
        ):
            if reason := differs_from_law(found, wanted, expected_inputs.rows[2]):
                raise ParityFailed(f"{what}: replay {number}: {reason}")
    return len(changes)


def _changes(given: Inputs, extra: tuple[torch.Tensor, ...]) -> Iterator[tuple[torch.Tensor, ...]]:
    """The inputs as they are; other values, positions, slots and holes for every token; and no row to store."""
    values, positions, slots = (row.clone() for row in given.rows)
    yield (values, positions, slots, *(one.clone() for one in extra))
    holes = slots.roll(1)
    holes[2::3] = -1 - holes[2::3]
    yield (values.flip(0) * 0.5, positions.roll(1), holes, *(one.flip(0) for one in extra))
    yield (values, positions, torch.full_like(slots, -1), *(one.clone() for one in extra))


def differs_from_law(
    found: Written,
    wanted: Written,
    slots: torch.Tensor,  # [T] int64
    tolerance: Tolerance = OURS,
) -> str:
    """How what was written differs from the law, empty where it does not. Rows that nothing was stored in stay."""
    differing = bits(found.tensor) != bits(wanted.tensor)
    if not found.rounds and not (tolerance.fp8_values_round and found.tensor.itemsize == 1):
        return f"{found.name} differs in {int(differing.sum())} elements" if differing.any() else ""
    stored = torch.arange(found.tensor.shape[0]) if not found.by_slot else slots[slots >= 0]
    elsewhere = differing.clone()
    elsewhere[stored] = False
    if elsewhere.any():
        return f"{found.name}: {int(elsewhere.sum())} elements changed that are nobody's"
    limit = max(FEWEST, int(tolerance.share * stored.numel() * differing[:1].numel()))
    if (count := int(differing.sum())) > limit:
        return f"{found.name}: {count} elements differ, at most {limit} may"
    one, other = found.tensor[stored].float(), wanted.tensor[stored].float()
    steps = tolerance.times_steps * STEPS[found.tensor.itemsize]
    allowed = steps * other.abs().amax(dim=-1, keepdim=True)
    if ((one - other).abs() > allowed).any():
        return f"{found.name}: an element is further off than roundings explain"
    return ""


def _scramble(pools: Sequence[torch.Tensor]) -> None:
    """Random bits, NaNs included, so that any byte that changes shows."""
    generator = torch.Generator().manual_seed(7)
    for pool in pools:
        words = bits(pool)
        limit = torch.iinfo(words.dtype)
        random = torch.randint(limit.min, limit.max + 1, words.shape, generator=generator, dtype=words.dtype)
        words.copy_(random.to(words.device))


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """As `bits`, and integers as they are."""
    return bits(tensor) if tensor.is_floating_point() else tensor


def on_cpu(work: Work) -> Work:
    """A copy of the work on the CPU."""
    fields = {field.name: _copied(getattr(work.tables, field.name)) for field in dataclasses.fields(work.tables)}
    sets = tuple(on_cpu_inputs(given) for given in work.sets)
    return dataclasses.replace(work, tables=type(work.tables)(**fields), sets=sets)


def on_cpu_inputs(given: Inputs) -> Inputs:
    """A copy of the inputs on the CPU."""
    return dataclasses.replace(given, rows=_copied(given.rows), slots=_copied(given.slots), pristine=())


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return value.cpu().clone() if isinstance(value, torch.Tensor) else value
