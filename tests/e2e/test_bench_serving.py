"""`sglang-dspark bench serving` by its console script: real servers, SGLang's real load generator, real rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dspark.bench import rows
from sglang_dspark.bench.rows import Row

pytestmark = pytest.mark.e2e

SCRIPT = Path(sys.executable).with_name("sglang-dspark")


def bench_serving(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[Row]]:
    command = [SCRIPT, "bench", "serving", "--demo", "--quick", "--out", folder, *arguments]
    # What a user's shell has: the command asks for the CPU engine by itself.
    environment = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            out, error = process.communicate(timeout=1800)
        except subprocess.TimeoutExpired:
            process.terminate()  # asked to end, it takes its servers along
            raise
    ran = subprocess.CompletedProcess(command, process.returncode, out, error)
    return ran, rows.read(sorted(folder.glob("*.jsonl")))


def test_both_servers_of_the_demo_pair(tmp_path: Path) -> None:
    """Float32: every answer is equal, before the timing and under load; the trained draft is accepted."""
    ran, found = bench_serving(tmp_path)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert [(row.subject, row.case["concurrency"]) for row in found] == [
        ("no speculation", 1),
        ("no speculation", 4),
        ("dspark", 1),
        ("dspark", 4),
    ]
    for row in found:
        assert row.measured and row.run.device["platform"] == "cpu" and row.preset == "demo pair"
        assert row.figures["completed_count"] == row.case["requests"] == 2 * row.case["concurrency"]
        # Every request is answered to its last token.
        assert row.figures["output_tokens_count"] == row.case["requests"] * row.case["output_tokens"]
        assert 0 < row.figures["ttft_p50_ms"] < row.figures["e2e_p50_ms"]
        assert row.how["server"].startswith("SGLANG_USE_CPU_ENGINE=1 python -m sglang.launch_server --model-path")
        assert row.run.versions["sglang"] == row.how["server_version"]
    for row in found[2:]:
        assert row.how["parity"] == "4 of 4 greedy answers equal"
        assert row.figures["equal_answers_share"] == 1.0
        assert 1.5 < row.figures["accepted_length_tokens"] <= 8
        assert row.how["server_speculative_num_draft_tokens"] == 8
    assert "not a performance figure" in ran.stdout
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.nightly
def test_a_forced_length_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    """2.5 is drawn as 2 or 3 a step; one above the block cannot be had, and the run says so."""
    ran, found = bench_serving(tmp_path / "fits", "--forced-acceptance", "2.5", "--concurrency", "4", "--rounds", "6")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    forced = found[-1]
    assert forced.subject == "dspark, 2.5 forced" and forced.how["wrong_text"]
    assert forced.figures["accepted_length_tokens"] == pytest.approx(2.5, rel=0.1)
    ran, found = bench_serving(tmp_path / "above", "--forced-acceptance", "12", "--concurrency", "1")
    assert ran.returncode == 1 and "SGLANG_SIMULATE_ACC_LEN was not honoured" in ran.stderr
    assert "dspark, 12 forced" not in {row.subject for row in found}
