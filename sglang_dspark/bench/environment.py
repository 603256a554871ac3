"""What a row says about the machine and the run: device, driver, versions, commit, command line."""

from __future__ import annotations

import platform as python_platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import sglang_dspark
from sglang_dspark.platforms import Platform, toolkit_version

from .rows import Run

# Above the package: the checkout, where this is one.
ROOT = Path(__file__).parents[2]
# Where every benchmark writes by default, and what the report reads: below the working folder.
OUT = Path("out/bench")
# What machines that ran it have sent back, in a checkout.
RESULTS = ROOT / "benchmarks" / "results"
UNKNOWN = "unknown"
DRIVER_FILES = {"nvidia": Path("/proc/driver/nvidia/version"), "amd": Path("/sys/module/amdgpu/version")}


def describe_run(platform: Platform, device_name: str, command: Sequence[str] | None = None) -> Run:
    """The facts of this run; ``command`` is this process's own by default."""
    program, *arguments = sys.argv if command is None else command
    device = {"name": device_name, "arch": platform.arch, "platform": platform.name, "driver": driver(platform.name)}
    return Run(
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=shlex.join([Path(program).name, *arguments]),
        commit=commit(ROOT) if is_checkout() else UNKNOWN,
        device=device,
        versions={
            "python": python_platform.python_version(),
            "torch": str(torch.__version__),
            "runtime": toolkit_version(),
            "triton": package_version("triton"),
            "sglang": package_version("sglang"),
            "sglang-dspark": sglang_dspark.__version__,
        },
    )


def is_checkout() -> bool:
    """Whether this package lies in its repository: an installed one has no tests, no results and no commit."""
    return (ROOT / "tests" / "parity").is_dir() and (ROOT / "pyproject.toml").is_file()


def package_version(name: str) -> str:
    """The installed version; ROCm's torch brings Triton under names of its own."""
    for candidate in (name, f"pytorch-{name}-rocm", f"pytorch-{name}"):
        try:
            return version(candidate)
        except PackageNotFoundError:
            continue
    return "not installed"


def driver(platform_name: str) -> str:
    """The kernel driver's version."""
    path = DRIVER_FILES.get(platform_name)
    if path is None or not path.exists():
        return UNKNOWN
    text = path.read_text()
    # NVIDIA's file is a sentence, which names the module, perhaps the architecture, and then the version.
    found = re.search(r"\d+\.\d+(\.\d+)*", text)
    return found.group() if found else UNKNOWN


def commit(root: Path) -> str:
    """The commit of the checkout, with a mark when tracked files differ from it."""
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{head}+changes" if changed else head


def results_path(folder: Path, run: Run) -> Path:
    """Where the rows of a run go: <device>-<date>.jsonl."""
    device = re.sub(r"[^a-z0-9]+", "-", run.device["name"].lower()).strip("-")
    return folder / f"{device}-{run.started[:10]}.jsonl"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
