"""A run of `sglang-dspark bench kernels`: with a GPU parity, then times; without one what can be said all the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from sglang_dspark import platforms
from sglang_dspark.bench import environment, report, roofline, rows
from sglang_dspark.bench.kernels import (
    compiled,
    context_kv,
    emulated,
    law,
    parity,
    selection,
    sglang_unfused,
    stopwatch,
    timing,
)
from sglang_dspark.bench.kernels.op import ParityFailed, Shape
from sglang_dspark.bench.kernels.selection import Selection
from sglang_dspark.bench.kernels.stopwatch import Budget
from sglang_dspark.bench.kernels.timing import Setting
from sglang_dspark.bench.rows import Row, Run

WITHOUT_GPU = (
    "No CUDA or ROCm GPU here (or SGLANG_USE_CPU_ENGINE=1): nothing below is a timing of one. In order: the CPU's\n"
    "backends against the law, and timed to prove the benchmark; floor times from data sheets; compiled code; what an\n"
    "interpreter of that code counts."
)
# A CPU is timed to prove the benchmark: few tokens, and a flush that takes no seconds.
CPU_TOKENS, CPU_REPETITIONS, CPU_FLUSH_BYTES, CPU_COPY_BYTES = (1, 48), 10, 2**23, 2**25
CPU_SLOTS, CPU_POSITIONS = 4096, 1024
BUDGET_S, CPU_BUDGET_S = 600.0, 60.0
REPETITIONS, QUICK_REPETITIONS = 200, 30


@dataclass(frozen=True)
class Options:
    """What was asked for. Empty sequences mean all; None is the default of the machine."""

    quick: bool = False
    ops: Sequence[str] = ()
    backends: Sequence[str] = ()
    presets: Sequence[str] = ()
    tokens: Sequence[int] = ()
    out: Path = environment.OUT
    budget_s: float | None = None
    repetitions: int | None = None
    parity_selection: str = ""  # of the parity suite's cases, by pytest's -k


def run(options: Options) -> int:
    """Find the device and run: 0 when all of ours was timed, 1 when parity failed or something of ours is missing."""
    budget = Budget(options.budget_s or BUDGET_S, time.monotonic)
    platform = platforms.current()
    chosen = selection.select(
        platform,
        quick=options.quick,
        ops=options.ops,
        backends=options.backends,
        presets=options.presets,
        tokens=options.tokens,
    )
    options.out.mkdir(parents=True, exist_ok=True)  # rather than after minutes
    if platform.device_type == "cpu":
        return without_gpu(cpu_setting(platform, chosen, options), chosen, options)
    device_name = torch.cuda.get_device_name()
    flush_bytes = roofline.flush_bytes(roofline.chip_named(device_name))
    setting = Setting(
        platform,
        stopwatch.Gpu(flush_bytes),
        "cuda:0",  # as the parity cases name it
        environment.describe_run(platform, device_name),
        budget,
        chosen,
        options.repetitions or (QUICK_REPETITIONS if options.quick else REPETITIONS),
        flush_bytes,
    )
    return measure(setting, options)


def cpu_setting(platform: platforms.Platform, chosen: Selection, options: Options) -> Setting:
    """What is timed on a CPU."""
    # Importing SGLang takes longer than the rest of a quick run.
    benches = tuple(replace(bench, baselines=()) for bench in chosen.benches) if options.quick else chosen.benches
    few = replace(chosen, benches=benches, presets=chosen.presets[:1], tokens=tuple(options.tokens) or CPU_TOKENS)
    return Setting(
        platform,
        stopwatch.Cpu(CPU_FLUSH_BYTES),
        "cpu",
        environment.describe_run(platform, "CPU"),
        Budget(options.budget_s or CPU_BUDGET_S, time.monotonic),
        few,
        options.repetitions or CPU_REPETITIONS,
        CPU_FLUSH_BYTES,
        modes=("eager",),
        caches=(stopwatch.COLD,),
        large_copy_bytes=CPU_COPY_BYTES,
        baselines_must_agree=False,
        num_slots=max(CPU_SLOTS, 1 + max(few.tokens) * 4),
        num_positions=CPU_POSITIONS,
    )


def measure(setting: Setting, options: Options) -> int:
    """The whole run on a device."""
    for op, refused in setting.selection.refused.items():
        setting.failures += [f"not timed, {op}: {name}: {reason}" for name, reason in refused.items()]
    setting.notes.update(dict.fromkeys(setting.selection.notes()))
    path = environment.results_path(options.out, setting.run)
    found: list[Row] = []
    try:
        if not any(setting.selection.backends.values()):
            raise ParityFailed("every backend of this platform refuses")
        check_parity(setting, options)
        _record(timing.timed_rows(setting), path, found, partial(_timed_line, setting))
    except ParityFailed as error:
        return _parity_failed(setting, error, path, bool(found))
    _finish(setting, found, path)
    return 1 if setting.failures else 0


def without_gpu(setting: Setting, chosen: Selection, options: Options) -> int:
    """What can be said on a CPU; the rows say of themselves what they rest on."""
    print(WITHOUT_GPU, flush=True)
    for op, refused in chosen.refused.items():
        setting.notes.update({f"{op}: {name} does not run here: {reason}": None for name, reason in refused.items()})
    path = environment.results_path(options.out, setting.run)
    found: list[Row] = []
    try:
        check_law(setting)
        if options.quick:
            setting.notes["SGLang's modules are left out of a quick run on a CPU"] = None
        else:
            _say_step("importing SGLang's modules")
            sglang_unfused.load()
        setting.budget = Budget(options.budget_s or CPU_BUDGET_S, time.monotonic)
        _record(timing.timed_rows(setting), path, found, partial(_timed_line, setting))
    except ParityFailed as error:
        return _parity_failed(setting, error, path, bool(found))
    setting.notes.update(dict.fromkeys(chosen.notes()))
    _record(unmeasured_rows(chosen, setting.run, setting.notes, options.quick), path, found, lambda row: "")
    _finish(setting, found, path)
    return 1 if setting.failures else 0


def check_parity(setting: Setting, options: Options) -> None:
    """The law, from graphs; then, in a checkout, the parity suite.

    Raises:
        ParityFailed: a backend does not follow the law, or was not checked.
    """
    check_law(setting)
    if reason := parity.missing():
        print(f"  the parity suite does not run here: {reason}", flush=True)
        return
    for op, usable in setting.selection.backends.items():
        if backends := [name for name in usable if name in parity.BACKENDS]:
            print(f"parity of {op}, {', '.join(backends)}: running {parity.SUITES[op]}", flush=True)
            timeout_s = max(1.0, setting.budget.left_s() * 0.7)
            print("  " + parity.run_suite(setting.platform, op, backends, timeout_s, options.parity_selection))


def check_law(setting: Setting) -> None:
    """Every backend against the law, from graphs where there are any."""
    how = "replays of captured graphs, with changed inputs," if setting.device != "cpu" else "calls"
    for bench in setting.selection.benches:
        presets = setting.selection.presets_of(bench)
        for backend in setting.selection.backends[bench.name]:
            compared = law.check(
                bench, setting.platform, backend, presets, setting.selection.dtypes, setting.machine, setting.device
            )
            if not compared:
                setting.failures.append(f"not timed, {bench.name}: {backend}: it covers none of the law's shapes")
                others = (name for name in setting.selection.backends[bench.name] if name != backend)
                setting.selection.backends[bench.name] = tuple(others)
                continue
            print(f"  {bench.name}, {backend}: {compared} {how} follow the law", flush=True)


def unmeasured_rows(chosen: Selection, run: Run, notes: dict[str, None], quick: bool) -> Iterator[Row]:
    """Floor times, compiled code, and what the interpreter counts."""
    for bench in chosen.benches:
        yield from stated_rows(bench.name, chosen.shapes(bench), bench.case, bench.moved_bytes, run)
    for bench in chosen.benches:
        _say_step(f"compiled code of {bench.name}")
        yield from compiled.compiled_rows(bench, chosen.presets[0], run, notes)
    if reason := emulated.missing():
        notes[reason] = None
        return
    for bench in chosen.benches:
        # A wave's count is the same in all of them but for the mix of Q and K rows.
        for preset in chosen.presets_of(bench)[: 1 if quick else None]:
            _say_step(f"emulating {bench.name}, {preset.name}")
            yield from emulated.emulated_rows(bench, preset, run)
    if context_kv.BENCH.name in [bench.name for bench in chosen.benches]:
        yield from _emulated_sglang(chosen, run, notes, quick)


def _emulated_sglang(chosen: Selection, run: Run, notes: dict[str, None], quick: bool) -> Iterator[Row]:
    if reason := emulated.sglang_missing():
        notes[reason] = None
        return
    _say_step("compiling and emulating SGLang's own writer")
    yield from emulated.sglang_rows(context_kv.BENCH, chosen.presets[: 1 if quick else None], run)


def stated_rows(
    op: str,
    shapes: Sequence[Shape],
    case: Callable[[Shape], dict[str, int | str]],
    moved_bytes: Callable[[Shape], int],
    run: Run,
) -> Iterator[Row]:
    """What arithmetic gives: the bytes, and the floor on each chip from its data sheet."""
    for shape in shapes:
        facts = {**case(shape), "pool_dtype": compiled.pool_kind(shape)}
        moved = moved_bytes(shape)
        for chip in roofline.CHIPS:
            subject = f"{chip.name} ({chip.stated_bytes_per_s / 1e12:g} TB/s)"
            figures = {"moved_bytes": moved, "floor_us": roofline.floor_us(moved, chip)}
            yield Row(op, subject, shape.preset.name, facts, {"basis": rows.STATED}, figures, False, run)


def _record(given: Iterator[Row], path: Path, found: list[Row], line: Callable[[Row], str]) -> None:
    for row in given:
        rows.append(path, row)
        found.append(row)
        if text := line(row):
            print(text, file=sys.stderr, flush=True)


def _timed_line(setting: Setting, row: Row) -> str:
    keys = ("query_heads", "kv_heads", "layers", "tokens", "pool_dtype")
    facts = " ".join(f"{key} {row.case[key]}" for key in keys if key in row.case)
    how = f"{row.how['mode']}, {row.how['cache']}"
    left_s = setting.budget.left_s()
    return f"{row.benchmark} {row.subject} {facts} {how}: {row.figures['p50_us']:.1f} us ({left_s:.0f} s left)"


def _say_step(what: str) -> None:
    print(f"... {what}", file=sys.stderr, flush=True)


def _finish(setting: Setting, found: list[Row], path: Path) -> None:
    print(f"\n{report.markdown(found)}")
    print(f"\n{len(found)} rows in {path}; sglang-dspark bench report {path} --out FOLDER draws them")
    _say(setting)


def _parity_failed(setting: Setting, error: ParityFailed, path: Path, some_rows: bool) -> int:
    stopped = f"timing stopped (leave the rows of this run in {path} out)" if some_rows else "nothing was timed"
    print(f"PARITY FAILED, {stopped}: {error}", file=sys.stderr)
    _say(setting)
    return 1


def _say(setting: Setting) -> None:
    for note in setting.notes:
        print(f"note: {note}")
    for failure in setting.failures:
        print(f"FAILED: {failure}", file=sys.stderr)
