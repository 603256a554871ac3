"""The context KV writer on this machine's GPU: parity first, then times.

Without a GPU nothing is timed: the CPU backends' parity runs, and what is known without a device is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES
from sglang_dspark.platforms import Platform

from . import context_kv_workload as workload
from . import environment, parity, presets, report, roofline, rows, stopwatch, upstream
from .context_kv_workload import DEVICE_COPY, Inputs, Shape, Work
from .parity import ParityFailed
from .rows import Row, Run
from .stopwatch import Budget, Machine, Timings

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
    shapes: tuple[Shape, ...]
    repetitions: int
    flush_bytes: int
    load_upstream: Callable[[str], Callable[..., None]] = upstream.load
    large_copy_bytes: int = LARGE_COPY_BYTES
    num_slots: int = workload.SLOTS
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    failures: list[str] = field(default_factory=list)


def shapes_of(platform: Platform, quick: bool) -> tuple[Shape, ...]:
    """Every shape of a run: bf16 pools first, then those of the platform's fp8."""
    tokens = presets.QUICK_TOKENS if quick else presets.TOKENS
    dtypes = (torch.bfloat16, FP8_DTYPES[platform.fp8_format])
    return tuple(
        Shape(preset, t, dtype)
        for dtype in dtypes
        for preset in (presets.PRESETS[name] for name in presets.QUICK_PRESETS)
        for t in tokens
    )


def usable_backends(platform: Platform) -> tuple[list[str], dict[str, str]]:
    """The platform's backends that cover a bf16 pool here (compiled by now, where they are), and why others do not."""
    usable, refused = [], {}
    spec = Shape(presets.PRESETS["m3-tp4"], 1, torch.bfloat16).spec()
    for name in platform.backends(context_kv.OP.name):
        reasons = context_kv.OP.backend(name).refusals(platform, spec)
        if reasons:
            refused[name] = "; ".join(reasons)
        else:
            usable.append(name)
    return usable, refused


def timed_rows(setting: Setting) -> Iterator[Row]:
    """Time everything, a row at a time. What is not timed leaves a note or a failure in the setting."""
    copy_bytes_per_us = 0.0
    for row in _device_rows(setting):
        if row.subject == DEVICE_COPY:
            copy_bytes_per_us = row.figures["bandwidth_gb_per_s"] * 1e3
        yield row
    # The platform's backends, SGLang's and the copy: the most that a shape has, so no case overdraws.
    subjects_a_shape = len(setting.platform.backends(context_kv.OP.name)) + len(upstream.VARIANTS) + 1
    for number, shape in enumerate(setting.shapes):
        cases_after = (len(setting.shapes) - number - 1) * subjects_a_shape * len(MODES)
        yield from _rows_of_shape(setting, shape, cases_after, copy_bytes_per_us)


def _device_rows(setting: Setting) -> Iterator[Row]:
    """What the device itself gives: an empty measurement, and a large copy (which also warms it up)."""
    source = torch.ones(setting.large_copy_bytes, dtype=torch.uint8, device=setting.device)
    destination = torch.empty_like(source)
    moved_bytes, asked = 2 * setting.large_copy_bytes, min(setting.repetitions, 50)
    subjects: tuple[tuple[str, Callable[[], object], int], ...] = (
        (DEVICE_COPY, partial(destination.copy_, source), moved_bytes),
        ("event_pair", lambda: None, 0),
    )
    for subject, call, moved in subjects:
        stopwatch.time_calls(setting.machine, [call], stopwatch.WARM_UP)
        timings = stopwatch.time_calls(setting.machine, [call], asked)
        figures = timings.figures()
        if moved:
            figures |= {"moved_bytes": moved, "bandwidth_gb_per_s": moved / figures["p50_us"] / 1e3}
        how = _how(setting, "eager", len(timings.device_us), asked, 1)
        yield Row("device", subject, "", {"bytes": moved // 2}, how, figures, True, setting.run)


def _rows_of_shape(setting: Setting, shape: Shape, cases_after: int, copy_bytes_per_us: float) -> Iterator[Row]:
    if setting.budget.left_s() == 0:
        setting.notes[f"not timed, the budget was spent: {_name(shape)}"] = None
        return
    work = workload.build(shape, setting.device, setting.num_slots)
    calls = _agreeing_writers(setting, shape, work)
    subjects: dict[str, Callable[[Inputs], None]] = {
        DEVICE_COPY: _copy,
        **{name: partial(_write, call) for name, call in calls.items()},
    }
    cases = [(mode, subject) for mode in MODES for subject in subjects]
    copy_p50_us: dict[str, float] = {}
    for number, (mode, subject) in enumerate(cases):
        cases_left = len(cases) - number + cases_after
        timings = _timed(setting, work, mode, subjects[subject], cases_left, f"{subject}, {mode}, {_name(shape)}")
        if timings is None:
            continue
        if subject == DEVICE_COPY:
            copy_p50_us[mode] = timings.figures()["p50_us"]
        how = _how(setting, mode, len(timings.device_us), setting.repetitions, len(work.sets))
        figures = _figures(setting, shape, timings, copy_bytes_per_us, copy_p50_us.get(mode))
        yield Row(context_kv.OP.name, subject, shape.preset.name, shape.case(), how, figures, True, setting.run)


def _agreeing_writers(setting: Setting, shape: Shape, work: Work) -> dict[str, workload.Call]:
    """The writers that cover the shape and write what the first one writes; one of ours that does not ends the run."""
    calls, refused = workload.writers(setting.platform, work, setting.load_upstream)
    for name, reason in refused.items():
        setting.notes[f"not timed, {shape.case()['pool_dtype']} pools, {name}: {reason}"] = None
    for name, reason in workload.disagreement(work, calls).items():
        if name not in upstream.VARIANTS:
            raise ParityFailed(f"{name} differs from {next(iter(calls))} on the inputs of {_name(shape)}: {reason}")
        setting.failures.append(f"not timed, {name}, {_name(shape)}: {reason}")
        del calls[name]
    return calls


def _timed(
    setting: Setting, work: Work, mode: str, subject: Callable[[Inputs], None], cases_left: int, what: str
) -> Timings | None:
    calls: list[Callable[[], object]] = [partial(subject, inputs) for inputs in work.sets]
    try:
        if mode == "graph" and setting.budget.left_s():
            calls = [setting.machine.captured(call) for call in calls]
        timings = stopwatch.time_within(setting.machine, calls, setting.repetitions, setting.budget, cases_left)
    except RuntimeError as error:
        setting.failures.append(f"not timed, {what}: {error}")
        return None
    if timings is None:
        setting.notes[f"not timed, too little of the budget was left: {what}"] = None
    elif len(timings.device_us) < setting.repetitions:
        setting.notes[f"trimmed by the budget to {len(timings.device_us)} repetitions: {what}"] = None
    return timings


def _figures(
    setting: Setting, shape: Shape, timings: Timings, copy_bytes_per_us: float, copy_p50_us: float | None
) -> dict[str, float]:
    figures: dict[str, float] = timings.figures()
    moved, p50_us = shape.moved_bytes(), figures["p50_us"]
    figures |= {"moved_bytes": moved, "bandwidth_gb_per_s": moved / p50_us / 1e3}
    figures["copy_bandwidth_share"] = moved / p50_us / copy_bytes_per_us
    if copy_p50_us is not None:
        figures["same_copy_share"] = copy_p50_us / p50_us
    if chip := roofline.chip_named(setting.run.device["name"]):
        figures["stated_peak_share"] = roofline.floor_us(moved, chip) / p50_us
    return figures


def _how(setting: Setting, mode: str, repetitions: int, asked: int, input_sets: int) -> dict[str, int | str | bool]:
    return {
        "mode": mode,
        "cache": "cold",
        "flush_bytes": setting.flush_bytes,
        "repetitions": repetitions,
        "trimmed": repetitions < asked,
        "input_sets": input_sets,
    }


def _write(call: workload.Call, inputs: Inputs) -> None:
    call(inputs.kv, inputs.positions, inputs.slots)


def _copy(inputs: Inputs) -> None:
    inputs.destination.copy_(inputs.source)


def _name(shape: Shape) -> str:
    case = shape.case()
    return f"{shape.preset.name} T={shape.tokens} H={case['kv_heads']} {case['pool_dtype']}"


def check_parity(setting: Setting, backends: Sequence[str], selection: str = "") -> None:
    """The suite, then graph replays: raises `ParityFailed`."""
    print(f"parity of {', '.join(backends)}: running {parity.SUITE}", flush=True)
    print("  " + parity.run_suite(setting.platform, backends, max(1.0, setting.budget.left_s() * 0.7), selection))
    for backend in backends:
        compared = parity.check_replays(setting.platform, backend, setting.machine, setting.device)
        if not compared:
            raise ParityFailed(f"{backend}: no case could be captured in a graph")
        print(f"  {backend}: {compared} replays of captured graphs, with changed inputs, follow the law", flush=True)


def measure(setting: Setting, out: Path, selection: str = "") -> int:
    """The whole run on a device: 0 when all of ours was timed, 1 when parity failed or something of ours is missing."""
    usable, refused = usable_backends(setting.platform)
    setting.failures += [f"not timed, {name}: {reason}" for name, reason in refused.items()]
    found: list[Row] = []
    path = environment.results_path(out, setting.run)
    try:
        if not usable:
            raise ParityFailed("every backend of this platform refuses")
        check_parity(setting, usable, selection)
        for row in timed_rows(setting):
            rows.append(path, row)
            found.append(row)
            _progress(row, setting)
    except ParityFailed as error:
        stopped = f"timing stopped (leave the rows of this run in {path} out)" if found else "nothing was timed"
        print(f"PARITY FAILED, {stopped}: {error}", file=sys.stderr)
        _say(setting)
        return 1
    print(f"\n{report.markdown(found)}\n\n{len(found)} rows in {path}")
    _say(setting)
    return 1 if setting.failures else 0


def _progress(row: Row, setting: Setting) -> None:
    left_s = setting.budget.left_s()
    facts = " ".join(str(row.case[key]) for key in ("kv_heads", "tokens", "pool_dtype") if key in row.case)
    text = f"{row.subject} {facts} {row.how['mode']}: {row.figures['p50_us']:.1f} us ({left_s:.0f} s left)"
    print(text, file=sys.stderr, flush=True)


def _say(setting: Setting) -> None:
    for note in setting.notes:
        print(f"note: {note}")
    for failure in setting.failures:
        print(f"FAILED: {failure}", file=sys.stderr)


def static_rows(shapes: Sequence[Shape], run: Run) -> list[Row]:
    """What arithmetic gives: the bytes, and the floor on each chip from its data sheet."""
    return [
        Row(
            context_kv.OP.name,
            f"{chip.name} ({chip.stated_bytes_per_s / 1e12:g} TB/s)",
            shape.preset.name,
            {**shape.case(), "pool_dtype": "bf16" if shape.pool_dtype.itemsize == 2 else "fp8"},
            {"basis": rows.STATED},
            {"moved_bytes": shape.moved_bytes(), "floor_us": roofline.floor_us(shape.moved_bytes(), chip)},
            False,
            run,
        )
        for shape in shapes
        for chip in roofline.CHIPS
    ]


def without_gpu(platform: Platform, run: Run, shapes: Sequence[Shape], budget: Budget, selection: str = "") -> int:
    """Parity of the CPU backends and the static facts; nothing is timed and no file is written."""
    print("No CUDA or ROCm GPU here (or SGLANG_USE_CPU_ENGINE=1): nothing can be timed. Parity of the CPU backends:")
    usable, refused = usable_backends(platform)
    for name, reason in refused.items():
        print(f"note: {name} does not run here: {reason}")
    try:
        print("  " + parity.run_suite(platform, usable, max(1.0, budget.left_s()), selection), flush=True)
    except ParityFailed as error:
        print(f"PARITY FAILED: {error}", file=sys.stderr)
        return 1
    try:
        upstream.load()
        baseline = "found; it runs on a GPU only"
    except upstream.UpstreamMissing as reason:
        baseline = str(reason)
    print(f"  {', '.join(usable)} follow the law. SGLang's own writer, the baseline: {baseline}.\n")
    print(report.markdown(static_rows(shapes, run)))
    return 0


def run(options: argparse.Namespace) -> int:
    """Find the device and run, with the options of `sglang-dspark bench kernels`."""
    budget = Budget(options.budget_s, time.monotonic)
    platform = platforms.current()
    shapes = shapes_of(platform, options.quick)
    if platform.device_type == "cpu":
        return without_gpu(platform, environment.describe_run(platform, "CPU"), shapes, budget)
    device_name = torch.cuda.get_device_name()
    run = environment.describe_run(platform, device_name)
    flush_bytes = roofline.flush_bytes(roofline.chip_named(device_name))
    repetitions = options.repetitions or (30 if options.quick else 200)
    machine = stopwatch.Gpu(flush_bytes)
    # The parity cases' own device: the same one, by its number.
    setting = Setting(platform, machine, "cuda:0", run, budget, shapes, repetitions, flush_bytes)
    return measure(setting, options.out or report.RESULTS)
