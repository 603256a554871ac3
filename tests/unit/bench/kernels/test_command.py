"""`sglang-dspark bench kernels` on a machine without a GPU, through the console script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark import platforms
from sglang_dspark.bench import rows
from sglang_dspark.bench.kernels import emulated, law
from sglang_dspark.bench.kernels.op import ParityFailed
from sglang_dspark.cli import main

SCRIPT = Path(sys.executable).with_name("sglang-dspark")


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    return subprocess.run(
        [str(SCRIPT), "bench", "kernels", *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run, in a folder that is no checkout."""
    folder = tmp_path_factory.mktemp("bench")
    return folder, bench("--quick", "--budget-s", "600", cwd=folder)


def test_a_quick_run_ends_well(quick):
    _, run = quick
    assert run.returncode == 0, run.stderr
    assert "nothing below is a timing of one" in run.stdout
    for op in ("context_kv", "qk_norm_rope"):
        for backend in ("host", "torch"):
            assert f"  {op}, {backend}: " in run.stdout
    assert "It is not a performance figure" in run.stdout
    assert "arithmetic, not measured" in run.stdout
    assert "| m3-tp1 | 4096 | 4 | 85 | 16 |" in run.stdout
    # Everything that takes more than two seconds says so on its way.
    assert "... compiled code of context_kv" in run.stderr and "context_kv host" in run.stderr


def test_its_rows_say_what_they_rest_on(quick):
    folder, run = quick
    (path,) = (folder / "out" / "bench").glob("cpu-*.jsonl")
    found = rows.read([path])
    assert f"{len(found)} rows in {Path('out/bench') / path.name}" in run.stdout
    timed = [row for row in found if row.measured]
    assert {row.run.device["platform"] for row in found} == {"cpu"}
    assert {(row.benchmark, row.subject) for row in timed} >= {
        ("context_kv", "host"), ("qk_norm_rope", "host"), ("qk_norm_rope", "torch"), ("context_kv", "device_copy")
    }  # fmt: skip
    assert {row.how["mode"] for row in timed} == {"eager"}
    # A console script has neither its folder nor the checkout on its path: the interpreter is found all the same.
    bases = {row.how["basis"] for row in found if not row.measured}
    assert bases >= {rows.STATED} | ({rows.EMULATED, rows.COMPILED} if not emulated.missing() else set())
    assert found[0].run.command == "sglang-dspark bench kernels --quick --budget-s 600"


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "kernels", "--help"])
    assert "sglang-dspark bench kernels --quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--backends", "hip"],
            "asked for hip on cpu (cpu), and none of them runs here: context_kv: hip: needs an AMD GPU",
        ),
        (["--presets", "m3-tp16"], "no preset m3-tp16: known are m3-tp1"),
        (["--ops", "attention"], "no op attention: known are context_kv, qk_norm_rope"),
    ],
)
def test_what_is_not_there_is_refused(arguments, message, tmp_path, capsys):
    assert main(["bench", "kernels", "--out", str(tmp_path), *arguments]) == 1
    assert f"sglang-dspark bench: {message}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_the_law_counts(monkeypatch, capsys, tmp_path):
    def fail(*_):
        raise ParityFailed("K of layer 0: 12 elements differ")

    monkeypatch.setattr(law, "check", fail)
    assert main(["bench", "kernels", "--quick", "--out", str(tmp_path)]) == 1
    assert "PARITY FAILED, nothing was timed: K of layer 0" in capsys.readouterr().err


def test_a_wheel_says_what_needs_a_checkout(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(law, "check", lambda *_: 1)
    monkeypatch.setattr(emulated, "is_checkout", lambda: False)
    assert main(["bench", "kernels", "--ops", "qk_norm_rope", "--tokens", "1", "--quick", "--out", str(tmp_path)]) == 0
    assert "note: emulated counts: run from a checkout" in capsys.readouterr().out


def test_a_gpu_that_is_not_covered_is_said(monkeypatch, capsys):
    def fail():
        raise platforms.UnsupportedPlatform("asked for gfx1100; its wavefronts are 32 lanes wide")

    monkeypatch.setattr(platforms, "current", fail)
    assert main(["bench", "kernels"]) == 1
    assert "bench: asked for gfx1100" in capsys.readouterr().err
