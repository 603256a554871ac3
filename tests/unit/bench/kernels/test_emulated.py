"""Counts from the interpreter, where this is a checkout, and what is said where it is not."""

from __future__ import annotations

import pytest

from sglang_dspark.bench import presets, rows
from sglang_dspark.bench.kernels import emulated
from sglang_dspark.bench.kernels.context_kv import BENCH as CONTEXT_KV
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH as QK_NORM_ROPE

from ..test_rows import RUN

needs_interpreter = pytest.mark.skipif(bool(emulated.missing()), reason=emulated.missing())


@needs_interpreter
def test_counts_of_the_writer():
    """The figures of hip/README.md, which tests/budgets holds the code to."""
    found = list(emulated.emulated_rows(CONTEXT_KV, presets.PRESETS["m3-tp4"], RUN))
    instructions = {(row.subject, row.case["pool_dtype"]): row.figures["row_instructions_count"] for row in found}
    assert instructions["gfx942", "bf16"] == pytest.approx(28.4, abs=0.1)
    assert instructions["gfx950", "fp8"] == pytest.approx(37.3, abs=0.1)
    for row in found:
        figures, kinds = row.figures, ("vector", "scalar", "memory", "waits")
        assert sum(figures[f"row_{kind}_count"] for kind in kinds) == pytest.approx(figures["row_instructions_count"])
        assert not row.measured and row.how["basis"] == rows.EMULATED
        assert figures["wave_memory_count"] == 11
        # Four tokens of five layers, K and V: a wave has eight rows.
        assert figures["waves_count"] == 5


@needs_interpreter
def test_counts_of_the_query_op():
    found = list(emulated.emulated_rows(QK_NORM_ROPE, presets.PRESETS["m3-tp8"], RUN))
    assert len(found) == 4
    # Eight waves of Q, each with four rows, and one with four of K and four of V.
    assert {row.figures["waves_count"] for row in found} == {9}
    assert all(row.figures["round_trips_count"] <= 3 for row in found)


@needs_interpreter
def test_sglangs_own_writer_is_counted_or_missed_out_loud():
    """With Triton its counts stand beside ours (tests/budgets holds their ratio); without, a note says why."""
    if reason := emulated.sglang_missing():
        assert "Triton is not installed" in reason or "no SGLang" in reason
        return
    found = list(emulated.sglang_rows(CONTEXT_KV, [presets.PRESETS["m3-tp4"]], RUN))
    assert {(row.case["arch"], row.how["warps"]) for row in found} == {
        (arch, warps) for arch in ("gfx942", "gfx950") for warps in (4, 1)
    }
    ours = next(emulated.emulated_rows(CONTEXT_KV, presets.PRESETS["m3-tp4"], RUN)).figures["row_instructions_count"]
    assert all(row.figures["row_instructions_count"] > ours for row in found)


def test_an_installed_package_says_where_the_counts_are(monkeypatch):
    monkeypatch.setattr(emulated, "is_checkout", lambda: False)
    assert emulated.missing().startswith("emulated counts: run from a checkout")
