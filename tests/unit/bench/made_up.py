"""Rows that nobody measured, of every kind that reports draw: for the look of pictures and the arithmetic of tables."""

from __future__ import annotations

from dataclasses import replace

from sglang_dspark.bench import rows
from sglang_dspark.bench.rows import Row, Run

RUN = Run(
    "2026-01-02T03:04:05+00:00",
    "sglang-dspark bench kernels",
    "abc",
    {"name": "Made-up MI300X", "arch": "gfx942", "platform": "amd", "driver": "6.1"},
    {"torch": "2.13", "sglang": "0.5.23"},
)
TOKENS = (1, 8, 48, 512, 4096, 16384)
# A start in us, and ns a byte.
WRITERS = {"hip": (3.0, 2.6e-4), "triton": (3.6, 3.4e-4), "sglang": (6.0, 1.2e-3), "device_copy": (2.4, 2.4e-4)}


def timed_rows(run: Run = RUN) -> list[Row]:
    """Every writer at every number of tokens, for two presets, and the device's own rows."""
    spread = {"p20_us": 1.0, "p50_us": 2.0, "p80_us": 3.0}
    copy = {**spread, "moved_bytes": 2.0**31, "bandwidth_gb_per_s": 4200.0}
    found = [
        Row("device", "device_copy", "", {"bytes": 2**30}, {"mode": "eager", "cache": "cold"}, copy, True, run),
        Row("device", "event_pair", "", {"bytes": 0}, {"mode": "eager", "cache": "cold"}, spread, True, run),
    ]
    for preset, heads in (("m3-tp8", 1), ("m3-tp1", 4)):
        for subject, (start_us, ns_a_byte) in WRITERS.items():
            for tokens in TOKENS:
                moved = tokens * (5 * 2 * heads * 128 * 4 + 272) + 2560
                us = start_us + moved * ns_a_byte * 1e-3 + 1.0
                figures = {"p20_us": us * 0.97, "p50_us": us, "p80_us": us * 1.05, "moved_bytes": float(moved)}
                figures["stated_peak_share"] = moved / 5.3e6 / us
                case = {"tokens": tokens, "kv_heads": heads, "pool_dtype": "bf16"}
                how = {"mode": "graph", "cache": "cold", "repetitions": 200}
                found.append(Row("context_kv", subject, preset, case, how, figures, True, run))
    return found


def static_rows(run: Run = RUN) -> list[Row]:
    """Floor times of two chips, and executed instructions on two."""
    found = []
    for chip, rate in (("MI300X (5.3 TB/s)", 5.3e6), ("MI355X (8 TB/s)", 8e6)):
        for pool, size in (("bf16", 4), ("fp8", 3)):
            for tokens in TOKENS:
                moved = tokens * (5 * 2 * 128 * size + 272)
                case = {"tokens": tokens, "kv_heads": 1, "pool_dtype": pool}
                figures = {"moved_bytes": float(moved), "floor_us": moved / rate}
                found.append(Row("context_kv", chip, "m3-tp8", case, {"basis": rows.STATED}, figures, False, run))
    for arch, counts in (("gfx942", (22.0, 3.0, 1.4, 2.1)), ("gfx950", (18.4, 3.0, 1.4, 2.1))):
        names = ("row_vector_count", "row_scalar_count", "row_memory_count", "row_waits_count")
        figures = {**dict(zip(names, counts, strict=True)), "row_instructions_count": sum(counts)}
        case = {"tokens": 64, "kv_heads": 1, "pool_dtype": "bf16", "arch": arch}
        found.append(Row("context_kv", arch, "m3-tp8", case, {"basis": rows.EMULATED}, figures, False, run))
    return found


def serving_rows(run: Run = RUN) -> list[Row]:
    """Three servers at three concurrencies."""
    found = []
    for subject, faster in (("no speculation", 1.0), ("dspark", 1.9), ("dspark, 5 forced", 2.6)):
        for concurrency in (1, 8, 64):
            tpot = (9 + concurrency * 0.25) / faster
            figures = {
                "output_tokens_per_s": concurrency * 1000 / tpot * 0.95,
                "all_tokens_per_s": concurrency * 1500 / tpot,
                "requests_per_s": concurrency * 2 / tpot,
                "completed_count": 4.0 * concurrency,
                "input_tokens_count": 4096.0 * concurrency,
                "output_tokens_count": 2048.0 * concurrency,
                "duration_s": 30.0,
            }
            for name, middle in (("ttft", 80 + concurrency), ("tpot", tpot), ("itl", tpot), ("e2e", tpot * 512 + 80)):
                figures |= {f"{name}_{part}_ms": middle * factor for part, factor in
                            (("mean", 1.02), ("p50", 1.0), ("p90", 1.1), ("p99", 1.3))}  # fmt: skip
            if subject != "no speculation":
                figures["accepted_length_tokens"] = 5.0 if "forced" in subject else 3.4
            if subject == "dspark":
                figures["equal_answers_share"] = 0.98
            case = {"data": "random ids", "input_tokens": 1024, "output_tokens": 512, "concurrency": concurrency,
                    "requests": 4 * concurrency}  # fmt: skip
            how = {"client": "python -m sglang.benchmark.serving", "server": "python -m sglang.launch_server",
                   "parity": "8 of 8 greedy answers equal", "warm_up_requests": 1,
                   "wrong_text": "forced" in subject}  # fmt: skip
            found.append(Row("serving", subject, "MiniMax-M3, TP 8", case, how, figures, True, run))
    return found


def on_cpu(found: list[Row]) -> list[Row]:
    """The same rows from a CPU."""
    device = {"name": "CPU", "arch": "cpu", "platform": "cpu", "driver": "unknown"}
    return [replace(row, run=replace(row.run, device=device)) for row in found]
