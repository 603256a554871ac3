"""The timed run on a machine that is not there: the CPU's backends under a fake clock."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import presets, rows
from sglang_dspark.bench.kernels import agreement, law, parity, timing
from sglang_dspark.bench.kernels.command import Options, measure
from sglang_dspark.bench.kernels.context_kv import BENCH as CONTEXT_KV
from sglang_dspark.bench.kernels.op import Baseline, ParityFailed, Shape, UpstreamMissing
from sglang_dspark.bench.kernels.qk_norm_rope import BENCH as QK_NORM_ROPE
from sglang_dspark.bench.kernels.selection import Selection
from sglang_dspark.bench.kernels.timing import Setting, timed_rows

from ..test_rows import RUN
from .machines import FakeMachine

CPU = platforms.describe("cpu", "cpu")
TP4 = presets.PRESETS["m3-tp4"]
CONDITIONS = [(mode, cache) for cache in ("cold", "warm") for mode in ("graph", "eager")]
MISSING = "not timed, context_kv, bf16 pools, sglang, unfused: SGLang is not installed"


def missing(*_):
    raise UpstreamMissing("SGLang is not installed")


def selection_of(*benches, backends=("torch",), refused=None) -> Selection:
    """A run of these ops on the torch backend alone, with one and with eight tokens; without SGLang."""
    alone = tuple(Baseline(name, missing, lambda *_: 1e-2) for name in ("sglang", "unfused"))
    benches = tuple(
        bench if len(bench.baselines) == 1 else dataclasses.replace(bench, baselines=alone) for bench in benches
    )
    named = {bench.name: tuple(backends) for bench in benches}
    return Selection(benches, (TP4,), (1, 8), (torch.bfloat16,), named, refused or {})


@pytest.fixture
def setting() -> Setting:
    """The writer on a fake machine."""
    machine = FakeMachine()
    return Setting(
        CPU, machine, "cpu", RUN, machine.budget(600), selection_of(CONTEXT_KV), 20, 4096, large_copy_bytes=1 << 16,
        num_slots=64, num_positions=64,
    )  # fmt: skip


@pytest.fixture
def parity_passes(monkeypatch):
    """Parity has its own tests; here it only has to come first."""
    ran: list[str] = []
    monkeypatch.setattr(law, "check", lambda *_: ran.append("law") or 42)
    monkeypatch.setattr(parity, "run_suite", lambda *_: ran.append("suite") or "97 passed")
    return ran


def baseline(call) -> Baseline:
    """A way of SGLang's that makes its call of ours."""
    return Baseline("sglang", lambda platform, spec, tables: call(platform, spec, tables), lambda *_: 1e-2)


def with_baseline(setting: Setting, call) -> None:
    bench = dataclasses.replace(CONTEXT_KV, baselines=(baseline(call),))
    setting.selection = selection_of(bench)


def test_every_case_gives_a_row(setting):
    found = list(timed_rows(setting))
    cases = [(row.benchmark, row.subject, row.case.get("tokens"), row.how["mode"], row.how["cache"]) for row in found]
    ours = [(t, *condition) for t in (1, 8) for condition in CONDITIONS]
    expected = [("context_kv", subject, *case) for case in ours for subject in ("device_copy", "torch")]
    device = [("device", subject, None, "eager", "cold") for subject in ("device_copy", "event_pair")]
    assert cases == device + expected
    assert list(setting.notes) == [MISSING]
    assert not setting.failures


def test_every_op_gives_rows(setting):
    setting.selection = selection_of(CONTEXT_KV, QK_NORM_ROPE)
    found = list(timed_rows(setting))
    assert [row.benchmark for row in found].count("qk_norm_rope") == [row.benchmark for row in found].count(
        "context_kv"
    )
    assert found[-1].case["query_heads"] == 16 and "layers" not in found[-1].case


def test_calls_in_place_start_from_the_same_values(setting, monkeypatch):
    """Otherwise a hundred repetitions of one subject would be the next one's input."""
    first_of_subject: list[float] = []
    real = timing._timed

    def watched(setting, work, *rest):
        timings = real(setting, work, *rest)
        for inputs in work.sets:
            inputs.rows[0].fill_(7)
        return timings

    def seen(machine, calls, *rest):
        first_of_subject.append(float(calls[0].args[-1].rows[0].float().sum()))

    setting.selection = selection_of(QK_NORM_ROPE)
    monkeypatch.setattr(timing, "_timed", watched)
    monkeypatch.setattr(timing.stopwatch, "time_within", seen)
    setting.modes = ("eager",)
    list(timed_rows(setting))
    # Two token counts, two caches, the copy and the backend.
    assert len(first_of_subject) == 8 and len(set(first_of_subject)) == 2


def test_the_figures_of_a_row(setting):
    """The fake device takes 5 us for everything, so every share follows from the bytes."""
    copy, pair, *found = timed_rows(setting)
    row = next(
        row for row in found if row.subject == "torch" and row.how["mode"] == "eager" and row.case["tokens"] == 8
    )
    assert copy.figures["p50_us"] == pair.figures["p50_us"] == pytest.approx(5.0)
    assert copy.figures["bandwidth_gb_per_s"] == pytest.approx(2 * (1 << 16) / 5e3)
    moved = CONTEXT_KV.moved_bytes(Shape(TP4, 8, torch.bfloat16))
    assert row.figures["moved_bytes"] == moved
    assert row.figures["p20_us"] == row.figures["p50_us"] == row.figures["p80_us"] == pytest.approx(5.0)
    assert row.figures["copy_bandwidth_share"] == pytest.approx(moved / 2 / (1 << 16))
    assert row.figures["same_copy_share"] == pytest.approx(1.0)
    assert "stated_peak_share" not in row.figures  # nothing is stated of "Test Device"
    assert row.how == {"mode": "eager", "cache": "cold", "flush_bytes": 4096, "repetitions": 20, "trimmed": False,
                       "input_sets": 4}  # fmt: skip
    assert row.measured and row.case["pool_dtype"] == "bf16"
    warm = next(row for row in found if row.how["cache"] == "warm")
    assert warm.how["flush_bytes"] == 0


def test_the_share_of_a_stated_peak(setting):
    setting.run = rows.Run(**{**vars(RUN), "device": {**RUN.device, "name": "NVIDIA H200"}})
    *_, row = timed_rows(setting)
    assert row.figures["stated_peak_share"] == pytest.approx(row.figures["moved_bytes"] / 4.8e12 / 5e-6)


def test_a_tight_budget_trims_and_says_so(setting):
    """85 us a repetition: 40 ms are too few for 20 repetitions of 16 cases, after about 4 ms for the device's own."""
    setting.budget = setting.machine.budget(0.040)
    found = list(timed_rows(setting))
    trimmed = [row for row in found if row.how["trimmed"]]
    assert trimmed and all(10 <= row.how["repetitions"] < 20 for row in trimmed)
    assert sum("trimmed by the budget" in note for note in setting.notes) == len(trimmed)


def test_a_spent_budget_says_what_is_not_timed(setting):
    setting.budget = setting.machine.budget(0.003)
    assert {row.benchmark for row in timed_rows(setting)} == {"device"}
    assert [note for note in setting.notes if "budget was spent" in note] == [
        "not timed, the budget was spent: context_kv m3-tp4 T=1 bf16",
        "not timed, the budget was spent: context_kv m3-tp4 T=8 bf16",
    ]


def test_parity_comes_before_timing(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(timing, "timed_rows", watched(timing.timed_rows, parity_passes))
    assert measure(setting, Options(out=tmp_path)) == 0
    assert parity_passes == ["law", "suite", "timing"]
    path = tmp_path / "test-device-2026-01-02.jsonl"
    assert len(rows.read([path])) == 18
    output = capsys.readouterr().out
    assert "### context_kv, pool dtype bf16, mode graph, cache warm" in output and f"18 rows in {path}" in output
    assert f"note: {MISSING}" in output


def test_a_wheel_is_timed_without_the_suite_and_says_so(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(parity, "is_checkout", lambda: False)
    assert measure(setting, Options(out=tmp_path)) == 0
    assert parity_passes == ["law"]
    assert "the parity suite does not run here: an installed package has no tests" in capsys.readouterr().out


def watched(call, ran):
    def run(setting):
        ran.append("timing")
        return call(setting)

    return run


@pytest.mark.parametrize(("module", "step"), [(parity, "run_suite"), (law, "check")])
def test_failed_parity_stops(module, step, setting, parity_passes, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise ParityFailed("12 K elements out of bounds")

    monkeypatch.setattr(module, step, fail)
    assert measure(setting, Options(out=tmp_path)) == 1
    assert "PARITY FAILED, nothing was timed: 12 K elements out of bounds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()) and "flush" not in setting.machine.log


def test_no_replay_is_no_parity(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(law, "check", lambda *_: 0)
    assert measure(setting, Options(out=tmp_path)) == 1
    assert "FAILED: not timed, context_kv: torch: it covers none of the law's shapes" in capsys.readouterr().err
    assert {row.subject for row in rows.read(tmp_path.iterdir())} == {"device_copy", "event_pair"}


def test_a_native_backend_that_is_missing_fails_the_run_and_the_others_are_timed(
    setting, parity_passes, tmp_path, capsys
):
    setting.selection.refused["context_kv"] = {"hip": "no AMD GPU compiler"}
    assert measure(setting, Options(out=tmp_path)) == 1
    captured = capsys.readouterr()
    assert "FAILED: not timed, context_kv: hip: no AMD GPU compiler" in captured.err
    assert "| m3-tp4 |" in captured.out


def test_ours_that_differs_on_the_timed_inputs_stops(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(agreement, "disagreement", lambda *_: {"torch": "V differs"})
    assert measure(setting, Options(out=tmp_path)) == 1
    error = capsys.readouterr().err
    assert "PARITY FAILED, timing stopped (leave the rows of this run" in error
    assert "context_kv: torch differs from torch on the inputs of m3-tp4 T=1 bf16: V differs" in error


def test_sglangs_that_differs_is_not_timed(setting, parity_passes, tmp_path, capsys):
    """Its launch would be wrong, and so would the comparison."""
    with_baseline(setting, lambda *_: lambda *rows: None)
    assert measure(setting, Options(out=tmp_path)) == 1
    captured = capsys.readouterr()
    assert "FAILED: not timed, sglang, context_kv m3-tp4 T=1 bf16: K of layer 0: 128 of 128" in captured.err
    assert "sglang" not in {row.subject for row in rows.read(tmp_path.iterdir())}


def test_sglangs_that_raises_is_not_timed(setting):
    """Another version's launcher may have other parameters; ours are timed all the same."""

    def other_version(*rows):
        raise TypeError("unexpected keyword argument 'rotary_dim'")

    with_baseline(setting, lambda *_: other_version)
    subjects = {row.subject for row in timed_rows(setting)}
    assert subjects == {"device_copy", "event_pair", "torch"}
    assert "it raises TypeError: unexpected keyword argument 'rotary_dim'" in setting.failures[0]


def test_sglangs_that_is_missing_is_a_note(setting):
    with_baseline(setting, missing)
    assert {row.subject for row in timed_rows(setting)} == {"device_copy", "event_pair", "torch"}
    assert list(setting.notes) == ["not timed, context_kv, bf16 pools, sglang: SGLang is not installed"]
    assert not setting.failures


def test_sglangs_that_agrees_is_timed(setting):
    """Torch in SGLang's place, so that its pools are right."""
    with_baseline(setting, lambda platform, spec, tables: _torch(spec, tables))
    subjects = [row.subject for row in timed_rows(setting) if row.benchmark == "context_kv"]
    assert subjects.count("sglang") == 2 * len(CONDITIONS) and not setting.notes


def _torch(spec, tables):
    return CONTEXT_KV.op.backend("torch").build(CPU, spec, tables)


def test_a_case_that_raises_leaves_the_others(setting, parity_passes, tmp_path, capsys):
    def capture(call):
        if call.func is timing._copy:
            raise RuntimeError("operation not permitted when stream is capturing")
        return call

    setting.machine.capture = capture
    assert measure(setting, Options(out=tmp_path)) == 1
    assert (
        "FAILED: not timed, device_copy, graph, cold cache, context_kv m3-tp4 T=1 bf16: operation not"
        in capsys.readouterr().err
    )
    found = [row for row in rows.read(tmp_path.iterdir()) if row.subject == "torch" and row.how["mode"] == "graph"]
    assert len(found) == 4 and all("same_copy_share" not in row.figures for row in found)
