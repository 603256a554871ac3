"""The whole run on a machine that is not there: the CPU's backends under a fake clock, parity included."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.bench import context_kv, context_kv_workload, parity, presets, rows, upstream
from sglang_dspark.bench.context_kv import Setting, measure, timed_rows
from sglang_dspark.bench.context_kv_workload import Shape
from sglang_dspark.bench.parity import ParityFailed
from sglang_dspark.bench.upstream import UpstreamMissing
from sglang_dspark.cli import main

from .machines import FakeMachine
from .test_rows import RUN

CPU = platforms.describe("cpu", "cpu")
TP4 = presets.PRESETS["m3-tp4"]
SHAPES = (Shape(TP4, 1, torch.bfloat16), Shape(TP4, 8, torch.bfloat16))


def no_sglang(variant="sglang"):
    raise UpstreamMissing("SGLang is not installed")


@pytest.fixture
def setting(monkeypatch) -> Setting:
    """The torch backend alone, on a fake machine."""
    only_torch = (("context_kv", ("torch",)),)
    platform = platforms.Platform("cpu", "cpu", "cpu", "e4m3fn", 1, only_torch)
    machine = FakeMachine()
    return Setting(
        platform, machine, "cpu", RUN, machine.budget(600), SHAPES, 20, 4096, no_sglang, large_copy_bytes=1 << 16,
        num_slots=64,
    )  # fmt: skip


@pytest.fixture
def parity_passes(monkeypatch):
    """Parity has its own tests; here it only has to come first."""
    ran: list[str] = []
    monkeypatch.setattr(parity, "run_suite", lambda *_: ran.append("suite") or "97 passed")
    monkeypatch.setattr(parity, "check_replays", lambda *_: ran.append("replays") or 42)
    return ran


def test_every_case_gives_a_row(setting):
    found = list(timed_rows(setting))
    cases = [(row.benchmark, row.subject, row.case.get("tokens"), row.how["mode"]) for row in found]
    ours = [(t, mode) for t in (1, 8) for mode in ("graph", "eager")]
    expected = [("context_kv", subject, *case) for case in ours for subject in ("device_copy", "torch")]
    device = [("device", "device_copy", None, "eager"), ("device", "event_pair", None, "eager")]
    assert cases == device + expected
    assert list(setting.notes) == ["not timed, bf16 pools, sglang: SGLang is not installed"]
    assert not setting.failures


def test_the_figures_of_a_row(setting):
    """The fake device takes 5 us for everything, so every share follows from the bytes."""
    copy, pair, *_, row = timed_rows(setting)
    assert copy.figures["p50_us"] == pair.figures["p50_us"] == pytest.approx(5.0)
    assert copy.figures["bandwidth_gb_per_s"] == pytest.approx(2 * (1 << 16) / 5e3)
    moved = SHAPES[1].moved_bytes()
    assert row.figures["moved_bytes"] == moved
    assert row.figures["p20_us"] == row.figures["p50_us"] == row.figures["p80_us"] == pytest.approx(5.0)
    assert row.figures["copy_bandwidth_share"] == pytest.approx(moved / 2 / (1 << 16))
    assert row.figures["same_copy_share"] == pytest.approx(1.0)
    assert "stated_peak_share" not in row.figures  # nothing is stated of "Test Device"
    assert row.how == {"mode": "eager", "cache": "cold", "flush_bytes": 4096, "repetitions": 20, "trimmed": False,
                       "input_sets": 4}  # fmt: skip
    assert row.measured and row.case["pool_dtype"] == "bf16"


def test_the_share_of_a_stated_peak(setting):
    setting.run = rows.Run(**{**vars(RUN), "device": {**RUN.device, "name": "NVIDIA H200"}})
    *_, row = timed_rows(setting)
    assert row.figures["stated_peak_share"] == pytest.approx(row.figures["moved_bytes"] / 4.8e12 / 5e-6)


def test_a_tight_budget_trims_and_says_so(setting):
    """85 us a repetition: 20 ms are too few for 20 repetitions of 8 cases, after about 4 ms for the device's own."""
    setting.budget = setting.machine.budget(0.020)
    found = list(timed_rows(setting))
    trimmed = [row for row in found if row.how["trimmed"]]
    assert trimmed and all(10 <= row.how["repetitions"] < 20 for row in trimmed)
    assert sum("trimmed by the budget" in note for note in setting.notes) == len(trimmed)


def test_a_spent_budget_says_what_is_not_timed(setting):
    setting.budget = setting.machine.budget(0.003)
    assert {row.benchmark for row in timed_rows(setting)} == {"device"}
    assert [note for note in setting.notes if "budget was spent" in note] == [
        "not timed, the budget was spent: m3-tp4 T=1 H=1 bf16",
        "not timed, the budget was spent: m3-tp4 T=8 H=1 bf16",
    ]


def test_parity_comes_before_timing(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(context_kv, "timed_rows", watched(context_kv.timed_rows, parity_passes))
    assert measure(setting, tmp_path) == 0
    assert parity_passes == ["suite", "replays", "timing"]
    path = tmp_path / "test-device-2026-01-02.jsonl"
    assert len(rows.read([path])) == 10
    output = capsys.readouterr().out
    assert "## Measured on Test Device" in output and f"10 rows in {path}" in output
    assert "note: not timed, bf16 pools, sglang: SGLang is not installed" in output


def watched(call, ran):
    def run(setting):
        ran.append("timing")
        return call(setting)

    return run


@pytest.mark.parametrize("step", ["run_suite", "check_replays"])
def test_failed_parity_stops(step, setting, parity_passes, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise ParityFailed("12 K elements out of bounds")

    monkeypatch.setattr(parity, step, fail)
    assert measure(setting, tmp_path) == 1
    assert "PARITY FAILED, nothing was timed: 12 K elements out of bounds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()) and "flush" not in setting.machine.log


def test_no_replay_is_no_parity(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(parity, "check_replays", lambda *_: 0)
    assert measure(setting, tmp_path) == 1
    assert "torch: no case could be captured in a graph" in capsys.readouterr().err


def test_a_native_backend_that_is_missing_fails_the_run_and_the_others_are_timed(
    setting, parity_passes, tmp_path, capsys
):
    setting.platform = platforms.Platform("cpu", "cpu", "cpu", "e4m3fn", 1, (("context_kv", ("hip", "torch")),))
    assert measure(setting, tmp_path) == 1
    captured = capsys.readouterr()
    assert "FAILED: not timed, hip: needs an AMD GPU" in captured.err
    assert "| m3-tp4 |" in captured.out


def test_ours_that_differs_on_the_timed_inputs_stops(setting, parity_passes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(context_kv_workload, "disagreement", lambda *_: {"torch": "V differs"})
    assert measure(setting, tmp_path) == 1
    error = capsys.readouterr().err
    assert "PARITY FAILED, timing stopped (leave the rows of this run" in error
    assert "torch differs from torch on the inputs of m3-tp4 T=1 H=1 bf16: V differs" in error


def test_sglangs_that_differs_is_not_timed(setting, parity_passes, tmp_path, capsys):
    """Its launch would be wrong, and so would the comparison."""
    setting.load_upstream = lambda variant: lambda *rows, **constants: None
    assert measure(setting, tmp_path) == 1
    captured = capsys.readouterr()
    assert "FAILED: not timed, sglang, m3-tp4 T=1 H=1 bf16: V differs" in captured.err
    assert "sglang" not in {row.subject for row in rows.read(tmp_path.iterdir())}


def test_sglangs_that_raises_is_not_timed(setting):
    """Another version's launcher may have other parameters; ours are timed all the same."""

    def other_version(*rows, **constants):
        raise TypeError("unexpected keyword argument 'rotary_dim'")

    setting.load_upstream = lambda variant: other_version
    subjects = {row.subject for row in timed_rows(setting)}
    assert subjects == {"device_copy", "event_pair", "torch"}
    assert "it raises TypeError: unexpected keyword argument 'rotary_dim'" in setting.failures[0]


def test_sglangs_that_agrees_is_timed(setting, monkeypatch):
    """Torch behind SGLang's launcher, so that its pools are right."""
    monkeypatch.setattr(upstream, "bind", lambda write, spec, tables: write(spec, tables))
    setting.load_upstream = lambda variant: (
        lambda spec, tables: context_kv.context_kv.choose(CPU, spec, tables, "torch").run
    )
    subjects = [row.subject for row in timed_rows(setting) if row.benchmark == "context_kv"]
    assert subjects.count("sglang") == subjects.count("sglang_1_warp") == 4 and not setting.notes


def test_a_case_that_raises_leaves_the_others(setting, parity_passes, tmp_path, capsys):
    def capture(call):
        if call.func is context_kv._copy:
            raise RuntimeError("operation not permitted when stream is capturing")
        return call

    setting.machine.capture = capture
    assert measure(setting, tmp_path) == 1
    assert "FAILED: not timed, device_copy, graph, m3-tp4 T=1 H=1 bf16: operation not" in capsys.readouterr().err
    found = [row for row in rows.read(tmp_path.iterdir()) if row.subject == "torch" and row.how["mode"] == "graph"]
    assert len(found) == 2 and all("same_copy_share" not in row.figures for row in found)


def test_the_shapes_of_a_run():
    amd = platforms.describe("amd", "gfx942")
    shapes = context_kv.shapes_of(amd, quick=False)
    assert len(shapes) == 44
    assert {shape.tokens for shape in shapes} == set(presets.TOKENS)
    assert {shape.preset.kv_heads for shape in shapes} == {1, 4}
    assert {shape.pool_dtype for shape in shapes} == {torch.bfloat16, torch.float8_e4m3fnuz}
    assert len(context_kv.shapes_of(amd, quick=True)) == 12


def test_without_a_gpu_nothing_is_timed(monkeypatch, capsys, tmp_path):
    """The command as it is, with a suite of one case: status 0, and no file."""
    real = parity.run_suite
    monkeypatch.setattr(parity, "run_suite", lambda *given: real(*given[:3], "one_token"))
    monkeypatch.setattr(upstream, "load", no_sglang)
    assert main(["bench", "kernels", "--quick", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "nothing can be timed" in output and "follow the law" in output and "SGLang is not installed" in output
    assert "Stated, not measured" in output and "Measured on" not in output
    assert "| m3-tp1 | 4096 | 4 | 85 | 16 |" in output
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_parity_counts(monkeypatch, capsys):
    def fail(*_):
        raise ParityFailed("status 1")

    monkeypatch.setattr(parity, "run_suite", fail)
    assert main(["bench", "kernels", "--quick"]) == 1
    assert "PARITY FAILED: status 1" in capsys.readouterr().err


def test_a_gpu_that_is_not_covered_is_said(monkeypatch, capsys):
    def fail():
        raise platforms.UnsupportedPlatform("asked for gfx1100; its wavefronts are 32 lanes wide")

    monkeypatch.setattr(platforms, "current", fail)
    assert main(["bench", "kernels"]) == 1
    assert "bench: asked for gfx1100" in capsys.readouterr().err
