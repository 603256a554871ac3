"""What rows say of the machine they were measured on, without taking a part of its GPUs.

Reading a GPU's name opens a context on it, whose memory a server that is started next would miss. A short-lived child
does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import torch

from sglang_dspark import platforms

from .environment import describe_run
from .rows import Run

_CHILD = f"from {__name__} import main; main()"


def run_facts() -> Run:
    """The facts of this run on this machine; `SGLANG_USE_CPU_ENGINE=1` makes it a CPU's."""
    if not _has_gpu():
        return describe_run(platforms.current(), "CPU")
    child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=300)
    if child.returncode:
        raise RuntimeError(f"the GPU could not be described:\n{child.stderr[-2000:]}")
    # The command is this process's.
    here = describe_run(platforms.describe("cpu", "cpu"), "CPU")
    return replace(Run(**json.loads(child.stdout.splitlines()[-1])), command=here.command, started=here.started)


def main() -> None:
    """Print the facts as one JSON line; for the child."""
    print(json.dumps(asdict(describe_run(platforms.current(), torch.cuda.get_device_name()))))


def _has_gpu() -> bool:
    # These open no context.
    return os.environ.get("SGLANG_USE_CPU_ENGINE") != "1" and torch.cuda.is_available()
