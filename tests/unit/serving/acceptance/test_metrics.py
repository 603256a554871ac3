"""Counts arrive at /metrics under SGLang's labels, and what did not change is not written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sglang_dspark.serving.acceptance.calibration import BINS, NOT_A_NUMBER, Cell
from sglang_dspark.serving.acceptance.counters import Counts
from sglang_dspark.serving.acceptance.metrics import Metrics, bin_name
from tests.unit.serving.acceptance.steps import Collector

GAMMA = 2
COUNTS = Counts(5, 2, [5, 3], [4, 1], 20, 6, 1, {"stopped": 2})


def test_every_count_has_its_metric() -> None:
    collector = Collector()
    metrics = Metrics(collector, GAMMA)
    metrics.export(COUNTS)
    metrics.export(COUNTS)
    assert collector.value("rounds", drafted="yes") == 10 and collector.value("rounds", drafted="no") == 4
    assert collector.by_position("proposed_tokens", GAMMA) == [10, 6]
    assert collector.by_position("accepted_tokens", GAMMA) == [8, 2]
    assert collector.value("verified_tokens") == 40
    assert collector.value("draft_steps", ran="yes") == 12 and collector.value("draft_steps", ran="no") == 2
    assert collector.value("drafting_changes", to="stopped") == 4


def test_calibration_and_alarms() -> None:
    collector = Collector()
    metrics = Metrics(collector, GAMMA)
    metrics.export_calibration([Cell(1, 9, 10, 9.5, 9), Cell(1, 9, 1, 0.9, 1), Cell(2, NOT_A_NUMBER, 3, 0.0, 1)])
    metrics.count_alarm("low_acceptance")
    assert collector.value("survival", position="1", bin="0.9-1.0") == 11
    assert collector.value("survival_predicted", position="1", bin="0.9-1.0") == 10.4
    assert collector.value("survival_accepted", position="1", bin="0.9-1.0") == 10
    assert collector.value("survival", position="2", bin="nan") == 3
    assert collector.value("alarms", alarm="low_acceptance") == 1


def test_zeros_are_not_written() -> None:
    collector = Collector()
    Metrics(collector, GAMMA).export(Counts(0, 0, [0, 0], [0, 0], 0, 0, 0, {}))
    assert collector.increments == 0


def test_bins_are_named_by_their_bounds() -> None:
    assert [bin_name(index) for index in (0, BINS - 1, NOT_A_NUMBER)] == ["0.0-0.1", "0.9-1.0", "nan"]


SCRIPT = """
import os, sys
from types import SimpleNamespace
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from sglang_dspark.serving.acceptance.counters import Counts
from sglang_dspark.serving.acceptance.metrics import Metrics

if os.fork() == 0:
    labels = {"model_name": "m3", "dp_rank": 1}
    Metrics(SimpleNamespace(labels=labels, _counter_cls=None), 2).export(Counts(5, 2, [5, 3], [4, 1], 20, 6, 1, {}))
    os._exit(0)
os.wait()
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_another_process_reads_them(tmp_path: Path) -> None:
    """As SGLang's HTTP server does: through prometheus_client's files, whose names must be legal there."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert 'sglang_dspark:accepted_tokens_total{dp_rank="1",model_name="m3",position="1"} 4.0' in out.stdout
    assert 'sglang_dspark:rounds_total{dp_rank="1",drafted="no",model_name="m3"} 2.0' in out.stdout
