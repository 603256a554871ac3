"""What the compiled AMD code executes, counted by the interpreter of `tests/amdgcn`: exact counts, no times.

The interpreter is a test tool and stays in `tests/`, so these figures need a checkout and LLVM's tools. Waves are full,
and every row is stored.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sglang_dspark.bench import rows
from sglang_dspark.bench.environment import ROOT, is_checkout
from sglang_dspark.bench.kernels.compiled import pool_kind
from sglang_dspark.bench.kernels.op import OpBench, Shape
from sglang_dspark.bench.kernels.tables import K_SCALE, V_SCALE
from sglang_dspark.bench.presets import RELEASED_LAYERS, Preset
from sglang_dspark.bench.rows import Row, Run
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES
from sglang_dspark.platforms import describe

ARCHS = ("gfx942", "gfx950")


def missing() -> str:
    """Why nothing can be emulated here, empty where it can."""
    if not is_checkout():
        return "emulated counts: run from a checkout (the interpreter is in tests/amdgcn, which a wheel does not carry)"
    try:
        reasons = [_tests("parity.emulated").missing(arch) for arch in ARCHS]
    except ImportError as error:
        return f"emulated counts: the interpreter cannot be imported: {error} (pip install 'sglang-dspark[test]')"
    return "".join(f"emulated counts: {reason}" for reason in reasons[:1] if reason)


def emulated_rows(bench: OpBench, preset: Preset, run: Run) -> Iterator[Row]:
    """A row for each chip and pool type."""
    chips = _tests("amdgcn.chip").CHIPS
    for arch in ARCHS:
        for dtype in (torch.bfloat16, FP8_DTYPES[describe("amd", arch).fp8_format]):
            # Four rows of one kind fill a wave, so this many tokens fill every wave.
            shape = Shape(preset, 4, dtype)
            counters = LAUNCHES[bench.name](shape, chips[arch])
            case = {**bench.case(shape), "arch": arch, "pool_dtype": pool_kind(shape)}
            how = {"basis": rows.EMULATED, "backend": "hip"}
            yield Row(bench.name, arch, preset.name, case, how, figures(counters, bench.rows_of(shape)), False, run)


def sglang_missing() -> str:
    """Why SGLang's own writer cannot be compiled and run in the interpreter here, empty where it can."""
    reason = _tests("budgets.upstream").missing()
    return f"SGLang's own writer is not emulated: {reason}" if reason else ""


def sglang_rows(bench: OpBench, presets: Sequence[Preset], run: Run) -> Iterator[Row]:
    """The same of SGLang's own context KV writer, bf16 pools, with its four warps and with one."""
    upstream = _tests("budgets.upstream")
    answer = upstream.compiled()
    for arch, warps, preset in itertools.product(ARCHS, upstream.WARPS, presets):
        if preset.kv_heads not in upstream.HEADS or preset.layers != RELEASED_LAYERS:
            continue
        counters, worked_on = upstream.written(answer, arch, preset.kv_heads, warps)
        shape = Shape(preset, 4, torch.bfloat16)
        case = {**bench.case(shape), "arch": arch, "pool_dtype": pool_kind(shape)}
        how = {"basis": rows.EMULATED, "backend": "triton", "warps": warps, "triton": answer["triton"]}
        subject = f"{arch}, SGLang's, {warps} warp" + ("s" if warps > 1 else "")
        yield Row(bench.name, subject, preset.name, case, how, figures(counters, worked_on), False, run)


def figures(counters: Any, rows_worked_on: int) -> dict[str, float]:
    """Of all waves: executed instructions a row of D values, memory instructions a wave, chains of loads."""
    kinds = counters.kinds
    waits = kinds["wait"] + kinds["nop"] + kinds["barrier"]
    memory = counters.vector_memory + kinds["scalar_load"]
    return {
        "row_instructions_count": counters.executed / rows_worked_on,
        "row_vector_count": kinds["vector"] / rows_worked_on,
        "row_memory_count": memory / rows_worked_on,
        "row_waits_count": waits / rows_worked_on,
        "row_scalar_count": (counters.executed - kinds["vector"] - memory - waits) / rows_worked_on,
        "row_asked_bytes": counters.bytes.total() / rows_worked_on,
        "wave_memory_count": counters.vector_memory / counters.waves,
        "round_trips_count": counters.round_trips,
        "waves_count": counters.waves,
    }


def _context_kv(shape: Shape, chip: Any) -> Any:
    cases, emulated = _tests("parity.cases"), _tests("parity.emulated")
    preset = shape.preset
    case = cases.Case(
        "bench",
        "",
        tokens=shape.tokens,
        layers=preset.layers,
        heads=preset.kv_heads,
        head_dim=preset.head_dim,
        rotary_dim=preset.rotary_dim,
        pool_dtype=shape.pool_dtype if shape.is_fp8 else None,
        scales=(K_SCALE, V_SCALE) * preset.layers if shape.is_fp8 else (),
    )
    return emulated.write(cases.problem(case), chip).counters


def _qk_norm_rope(shape: Shape, chip: Any) -> Any:
    cases, emulated = _tests("parity.qk_norm_rope.cases"), _tests("parity.qk_norm_rope.emulated")
    preset = shape.preset
    case = cases.Case(
        "bench",
        "",
        tokens=shape.tokens,
        heads=(preset.query_heads, preset.kv_heads),
        head_dim=preset.head_dim,
        rotary_dim=preset.rotary_dim,
        pool_dtype=shape.pool_dtype if shape.is_fp8 else None,
        pool_scales=(K_SCALE, V_SCALE) if shape.is_fp8 else None,
    )
    return emulated.run(cases.problem(case), chip).counters


LAUNCHES: dict[str, Callable[[Shape, Any], Any]] = {"context_kv": _context_kv, "qk_norm_rope": _qk_norm_rope}


def _tests(name: str) -> Any:
    # A console script does not have the checkout's root on its path.
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(f"tests.{name}")
