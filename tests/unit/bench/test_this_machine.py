"""The machine's description: a CPU's at once, a GPU's from a child that gives the device back."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, replace

import pytest

from sglang_dspark.bench import this_machine

from .test_rows import RUN


def test_a_cpu():
    found = this_machine.run_facts()
    assert found.device["name"] == "CPU" and found.device["platform"] == "cpu" and found.versions["torch"]


def test_a_gpu_is_described_by_a_child(monkeypatch):
    """The device and the versions are the child's; what was typed, and when, are ours."""
    asked = []

    def run(command, **options):
        asked.append(command)
        described = replace(RUN, command="the child's", started="2020-01-01T00:00:00+00:00")
        return subprocess.CompletedProcess(command, 0, f"a warning\n{json.dumps(asdict(described))}\n", "")

    monkeypatch.setattr(this_machine, "_has_gpu", lambda: True)
    monkeypatch.setattr(this_machine.subprocess, "run", run)
    found = this_machine.run_facts()
    assert found.device == RUN.device and found.versions == RUN.versions
    assert found.command != "the child's" and found.started > "2026"
    assert "this_machine" in asked[0][-1]


def test_one_that_cannot_be_described(monkeypatch):
    """No GPU here, so the child's own error comes back."""
    monkeypatch.setattr(this_machine, "_has_gpu", lambda: True)
    with pytest.raises(RuntimeError, match="the GPU could not be described"):
        this_machine.run_facts()
