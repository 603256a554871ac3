"""The timed rows: each shape's writers, SGLang's own path and a copy as big; graph and eager, cold and warm cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from sglang_dspark.bench import roofline
from sglang_dspark.bench.kernels import agreement, stopwatch
from sglang_dspark.bench.kernels.op import POSITIONS, SLOTS, Call, Inputs, OpBench, ParityFailed, Shape, Work
from sglang_dspark.bench.kernels.selection import Selection
from sglang_dspark.bench.kernels.stopwatch import Budget, Machine, Timings
from sglang_dspark.bench.rows import Row, Run
from sglang_dspark.platforms import Platform

DEVICE, DEVICE_COPY, EVENT_PAIR = "device", "device_copy", "event_pair"
MODES = ("graph", "eager")
LARGE_COPY_BYTES = 2**30


@dataclass(eq=False)
class Setting:
    """One run: on what, with what, and what it had to say on the way."""

    platform: Platform
    machine: Machine
    device: str
    run: Run
    budget: Budget
    selection: Selection
    repetitions: int
    flush_bytes: int
    modes: tuple[str, ...] = MODES
    caches: tuple[str, ...] = stopwatch.CACHES
    large_copy_bytes: int = LARGE_COPY_BYTES
    # Off on a CPU, where SGLang's modules may want instructions or libraries that not every one has.
    baselines_must_agree: bool = True
    num_slots: int = SLOTS
    num_positions: int = POSITIONS
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    failures: list[str] = field(default_factory=list)

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """Every (mode, cache) that a subject is timed in."""
        return tuple((mode, cache) for cache in self.caches for mode in self.modes)

    def shapes(self) -> list[tuple[OpBench, Shape]]:
        """Every shape of every op."""
        return [(bench, shape) for bench in self.selection.benches for shape in self.selection.shapes(bench)]


def timed_rows(setting: Setting) -> Iterator[Row]:
    """Time everything, a row at a time. What is not timed leaves a note or a failure in the setting.

    Raises:
        ParityFailed: a backend of ours does something else than the first one on the timed inputs.
    """
    copy_bytes_per_us = 0.0
    for row in _device_rows(setting):
        if row.subject == DEVICE_COPY:
            copy_bytes_per_us = row.figures["bandwidth_gb_per_s"] * 1e3
        yield row
    left = setting.shapes()
    while left:
        bench, shape = left.pop(0)
        # The most cases that are left, so that none overdraws: every backend, SGLang's ways, and the copy.
        cases_after = sum(_most_subjects(setting, other) for other, _ in left) * len(setting.conditions)
        yield from _rows_of_shape(setting, bench, shape, cases_after, copy_bytes_per_us)


def _most_subjects(setting: Setting, bench: OpBench) -> int:
    return len(setting.selection.backends[bench.name]) + len(bench.baselines) + 1


def _device_rows(setting: Setting) -> Iterator[Row]:
    """What the device itself gives: an empty measurement, and a large copy (which also warms it up)."""
    source = torch.ones(setting.large_copy_bytes, dtype=torch.uint8, device=setting.device)
    destination = torch.empty_like(source)
    moved_bytes, asked = 2 * setting.large_copy_bytes, min(setting.repetitions, 50)
    subjects: tuple[tuple[str, Callable[[], object], int], ...] = (
        (DEVICE_COPY, partial(destination.copy_, source), moved_bytes),
        (EVENT_PAIR, lambda: None, 0),
    )
    for subject, call, moved in subjects:
        stopwatch.time_calls(setting.machine, [call], stopwatch.WARM_UP)
        timings = stopwatch.time_calls(setting.machine, [call], asked)
        figures = timings.figures()
        if moved:
            figures |= {"moved_bytes": moved, "bandwidth_gb_per_s": moved / figures["p50_us"] / 1e3}
        how = _how(setting, "eager", stopwatch.COLD, len(timings.device_us), asked, 1)
        yield Row(DEVICE, subject, "", {"bytes": moved // 2}, how, figures, True, setting.run)


def _rows_of_shape(
    setting: Setting, bench: OpBench, shape: Shape, cases_after: int, copy_bytes_per_us: float
) -> Iterator[Row]:
    if setting.budget.left_s() == 0:
        setting.notes[f"not timed, the budget was spent: {bench.name} {shape}"] = None
        return
    work = bench.build(shape, setting.device, setting.num_slots, setting.num_positions)
    calls = _agreeing_writers(setting, bench, work)
    subjects: dict[str, Callable[[Inputs], object]] = {
        DEVICE_COPY: _copy,
        **{name: partial(_write, call) for name, call in calls.items()},
    }
    cases = [(mode, cache, subject) for mode, cache in setting.conditions for subject in subjects]
    copy_p50_us: dict[tuple[str, str], float] = {}
    for number, (mode, cache, subject) in enumerate(cases):
        cases_left = len(cases) - number + cases_after
        what = f"{subject}, {mode}, {cache} cache, {bench.name} {shape}"
        timings = _timed(setting, work, mode, cache, subjects[subject], cases_left, what)
        if timings is None:
            continue
        if subject == DEVICE_COPY:
            copy_p50_us[mode, cache] = timings.figures()["p50_us"]
        how = _how(setting, mode, cache, len(timings.device_us), setting.repetitions, len(work.sets))
        moved_bytes = bench.moved_bytes(shape)
        figures = _figures(setting, moved_bytes, timings, copy_bytes_per_us, copy_p50_us.get((mode, cache)))
        yield Row(bench.name, subject, shape.preset.name, bench.case(shape), how, figures, True, setting.run)


def _agreeing_writers(setting: Setting, bench: OpBench, work: Work) -> dict[str, Call]:
    """The writers that cover the shape and do what the first one does; one of ours that does not ends the run."""
    calls, refused = agreement.writers(bench, setting.platform, work, setting.selection.backends[bench.name])
    for reason in dict.fromkeys(refused.values()):
        names = ", ".join(name for name, its in refused.items() if its == reason)
        setting.notes[f"not timed, {bench.name}, {work.shape.pool_name} pools, {names}: {reason}"] = None
    shares = {baseline.name: baseline.share(setting.platform, work.shape) for baseline in bench.baselines}
    for name, reason in agreement.disagreement(bench, work, calls, shares).items():
        if name not in shares:
            first = next(iter(calls))
            raise ParityFailed(f"{bench.name}: {name} differs from {first} on the inputs of {work.shape}: {reason}")
        what = f"not timed, {name}, {bench.name} {work.shape}: {reason}"
        if setting.baselines_must_agree:
            setting.failures.append(what)
        else:
            setting.notes[what] = None
        del calls[name]
    return calls


def _timed(
    setting: Setting,
    work: Work,
    mode: str,
    cache: str,
    subject: Callable[[Inputs], object],
    cases_left: int,
    what: str,
) -> Timings | None:
    for inputs in work.sets:
        inputs.restore()
    calls: list[Callable[[], object]] = [partial(subject, inputs) for inputs in work.sets]
    try:
        if mode == "graph" and setting.budget.left_s():
            calls = [setting.machine.captured(call) for call in calls]
        timings = stopwatch.time_within(setting.machine, calls, setting.repetitions, setting.budget, cases_left, cache)
    except Exception as error:  # a capture of SGLang's functions may fail in other ways than torch does
        setting.failures.append(f"not timed, {what}: {error}")
        return None
    if timings is None:
        setting.notes[f"not timed, too little of the budget was left: {what}"] = None
    elif len(timings.device_us) < setting.repetitions:
        setting.notes[f"trimmed by the budget to {len(timings.device_us)} repetitions: {what}"] = None
    return timings


def _figures(
    setting: Setting, moved_bytes: int, timings: Timings, copy_bytes_per_us: float, copy_p50_us: float | None
) -> dict[str, float]:
    figures: dict[str, float] = timings.figures()
    p50_us = figures["p50_us"]
    figures |= {"moved_bytes": moved_bytes, "bandwidth_gb_per_s": moved_bytes / p50_us / 1e3}
    figures["copy_bandwidth_share"] = moved_bytes / p50_us / copy_bytes_per_us
    if copy_p50_us is not None:
        figures["same_copy_share"] = copy_p50_us / p50_us
    if chip := roofline.chip_named(setting.run.device["name"]):
        figures["stated_peak_share"] = roofline.floor_us(moved_bytes, chip) / p50_us
    return figures


def _how(
    setting: Setting, mode: str, cache: str, repetitions: int, asked: int, input_sets: int
) -> dict[str, int | str | bool]:
    return {
        "mode": mode,
        "cache": cache,
        "flush_bytes": setting.flush_bytes if cache == stopwatch.COLD else 0,
        "repetitions": repetitions,
        "trimmed": repetitions < asked,
        "input_sets": input_sets,
    }


def _write(call: Call, inputs: Inputs) -> None:
    call(*inputs.rows)


def _copy(inputs: Inputs) -> None:
    inputs.destination.copy_(inputs.source)
