"""What a row says of the machine."""

from __future__ import annotations

import subprocess

import pytest

from sglang_dspark import platforms
from sglang_dspark.bench import environment

from .test_rows import RUN


def test_the_run_of_this_machine():
    run = environment.describe_run(platforms.describe("cpu", "cpu"), "CPU", ["/bin/sglang-dspark", "--out", "a b"])
    assert run.command == "sglang-dspark --out 'a b'"
    assert run.device == {"name": "CPU", "arch": "cpu", "platform": "cpu", "driver": "unknown"}
    assert {"torch", "triton", "sglang", "sglang-dspark", "runtime", "python"} == set(run.versions)


def test_a_missing_package_is_said():
    assert environment.package_version("no-such-package-here") == "not installed"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\nGCC version: 12",
            "575.57.08",
        ),
        ("6.10.5\n", "6.10.5"),
        ("", "unknown"),
    ],
)
def test_driver(text, version, tmp_path, monkeypatch):
    """The x86_64 of NVIDIA's sentence is no version."""
    (tmp_path / "version").write_text(text)
    monkeypatch.setitem(environment.DRIVER_FILES, "amd", tmp_path / "version")
    assert environment.driver("amd") == version


def test_commit(tmp_path):
    assert environment.commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "m"], check=True)
    (tmp_path / "results").write_text("untracked: no change of what was timed")
    clean = environment.commit(tmp_path)
    (tmp_path / "file").write_text("two")
    assert len(clean) == 40 and environment.commit(tmp_path) == f"{clean}+changes"


def test_results_carry_the_device_and_the_date(tmp_path):
    assert environment.results_path(tmp_path, RUN) == tmp_path / "test-device-2026-01-02.jsonl"


def test_only_a_checkout_has_a_commit(tmp_path, monkeypatch):
    """An installed package may lie below another project's repository."""
    assert environment.is_checkout()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert not environment.is_checkout()
    assert environment.describe_run(platforms.describe("cpu", "cpu"), "CPU", ["bench"]).commit == "unknown"
