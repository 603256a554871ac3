"""`sglang-dspark bench model` and `bench report`, by their console script: one writes rows, the other reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark import cli
from sglang_dspark.bench import rows
from tests.unit.bench.made_up import timed_rows

SCRIPT = Path(sys.executable).with_name("sglang-dspark")


def bench(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [SCRIPT, "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=900)


def test_from_the_model_to_the_page(tmp_path):
    """The page is made in another process, from the rows alone."""
    modelled = bench(
        "model", "--device", "MI355X", "--batch", "4", "--weights", "fp8", "--out", "rows", folder=tmp_path
    )
    assert modelled.returncode == 0, modelled.stderr
    assert "### Step-time model: MiniMax-M3, TP 8 on MI355X, weights fp8" in modelled.stdout
    reported = bench("report", "rows/model-mi355x.jsonl", "--out", "page", folder=tmp_path)
    assert reported.returncode == 0, reported.stderr
    page, picture = (Path(line) for line in reported.stdout.split())
    assert page == Path("page/bench-results.md") and (tmp_path / picture).stat().st_size > 10_000
    table = modelled.stdout.split("### Step-time")[1].split("\n\n")[3]
    assert table in (tmp_path / page).read_text()


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["bench", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_every_argument_of_the_question_reaches_the_model(capsys):
    asked = (
        "--tp 4 --batch 2 --context 512 --accepted-length 2.5 --gamma 5 --features 3 --draft-mlp-width 4096 --kv fp8"
    )
    status, out, _ = run(capsys, "model", *asked.split(), "--draft-kv", "fp8", "--expert-overlap", "0.25")
    assert status == 0
    assert "TP 4 on MI300X, weights bf16, KV fp8, draft's KV fp8, context 512, gamma 5, accepted length 2.5" in out
    assert "3 features, MLP width 4096" in out and "the same experts to 25% and the same key blocks to 100%" in out
    assert "| 2 |" in out and "| 1 |" not in out.split("Stage by stage")[0]


def test_measured_rows_are_prices(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    for row in timed_rows():
        rows.append(path, row)
    status, out, _ = run(capsys, "model", "--batch", "1", "--rows", str(path))
    assert status == 0 and "- memory: measured copy, 4200 GB/s (2026-01-02)" in out
    assert "- launch: 1.40 us, the smallest copy in a graph" in out and "- ops: measured: context_kv (ours)" in out
    status, out, _ = run(capsys, "model", "--batch", "1", "--rows", str(path), "--launch-us", "2")
    assert "- launch: 2 us assumed" in out


def test_sizes_of_checkpoints(tmp_path, capsys):
    from sglang_dspark.demo import build

    pair = build(tmp_path)
    arguments = ["--model-path", str(pair.target), "--draft-path", str(pair.draft), "--tp", "1", "--batch", "1"]
    status, out, _ = run(capsys, "model", *arguments)
    assert status == 0 and "### Step-time model: target, TP 1" in out and "draft: 2 layers, 2 features" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "--device", "MI100"], "asked for the prices of 'MI100'; known are MI300X"),
        (["model", "--tp", "3"], "3 ranks do not divide 64 query heads"),
        (["model", "--accepted-length", "0.5"], "--accepted-length 0.5: too small"),
        (["model", "--gamma", "0"], "gamma 0: give 1 or more"),
        (["model", "--launch-us", "-1"], "--launch-us -1: too small"),
        (["model", "--model-path", "/not/there"], "The target /not/there cannot be used:"),
        (["report", "/not/there.jsonl"], "/not/there.jsonl"),
    ],
)
def test_what_cannot_be_answered(arguments, message, capsys):
    status, _, error = run(capsys, *arguments)
    assert status == 1 and message in error and error.startswith("sglang-dspark bench:")


def test_no_rows_and_bad_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    from sglang_dspark.bench import environment

    monkeypatch.setattr(environment, "RESULTS", tmp_path / "nothing")
    status, _, error = run(capsys, "report")
    assert status == 1 and "no rows in out/bench" in error and "bench kernels" in error
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"schema": 7}) + "\n")
    status, _, error = run(capsys, "report", str(bad))
    assert status == 1 and "bad.jsonl:1: expected a row of schema" in error


def test_the_default_is_what_was_written_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for row in timed_rows():
        rows.append(tmp_path / "out" / "bench" / "made-up.jsonl", row)
    status, out, _ = run(capsys, "report")
    assert status == 0 and "## Measured on Made-up MI300X" in out
