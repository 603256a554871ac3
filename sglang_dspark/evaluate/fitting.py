"""Fits the temperatures with SGLang's own fitter, and writes the file that its server reads.

`python -m sglang.benchmark.dspark_sts_fit` (SGLang 0.5.23) searches 41 temperatures from 0.1 to 10 for the one with
the smallest calibration error of the survival, position after position, each with the temperatures before it in
place: the paper's procedure. It runs as a process of its own, on files like those that a server collects. What it
writes is kept as it is but for the errors, which it measured on the very rounds that it fitted: those of the held-out
rounds take their place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sglang_dspark.evaluate.calibration import Position
from sglang_dspark.evaluate.samples import Samples

FITTER = "sglang.benchmark.dspark_sts_fit"
FEWEST_ROUNDS = 200


class FitError(RuntimeError):
    """There is too little to fit, or SGLang's fitter failed."""


def fit_temperatures(samples: Samples) -> list[float]:
    """A temperature for each position.

    Raises:
        FitError: too few rounds, SGLang is not installed, or its fitter failed.
    """
    if len(samples) < FEWEST_ROUNDS:
        raise FitError(
            f"asked for temperatures from {len(samples)} rounds; take {FEWEST_ROUNDS} or more: with 15 bins fewer say "
            "nothing. More prompts or longer answers give more rounds"
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "fitted.json"
        samples.save(Path(folder) / "rounds.0.pt")
        run_sglang(FITTER, ["--data-glob", str(Path(folder) / "rounds.*.pt"), "--out", str(out)])
        return [float(value) for value in json.loads(out.read_text())["temperatures"]]


def write_calibration(path: Path, positions: Sequence[Position], data: str, rounds: int) -> None:
    """Write the file for `--speculative-dspark-confidence-sts-path`.

    Args:
        path: of the file.
        positions: of the held-out rounds.
        data: what the temperatures were fitted on, in words.
        rounds: how many rounds they were fitted on.
    """
    table = {
        "temperatures": [one.temperature for one in positions],
        "dataset": data,
        "num_samples": rounds,
        "ece_before": [one.ece_before for one in positions],
        "ece_after": [one.ece_after for one in positions],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, indent=2) + "\n")


def run_sglang(module: str, arguments: Sequence[str], *, show: bool = False) -> None:
    """Run one of SGLang's tools; `show` passes its output on to standard error.

    Raises:
        FitError: it ended with an error; the message holds the end of what it said.
    """
    command = [sys.executable, "-m", module, *arguments]
    ran = subprocess.run(
        command,
        env=tool_environment(),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if show else subprocess.PIPE,
        stderr=subprocess.STDOUT if not show else None,
        text=True,
    )
    if ran.returncode:
        last = "see above" if show else "\n".join((ran.stdout or "").splitlines()[-15:])
        hint = "" if _installed() else " SGLang is not installed in this environment; run this where it is."
        raise FitError(f"asked SGLang's {module}, which ended with status {ran.returncode}.{hint}\n{last}")


def tool_environment() -> dict[str, str]:
    """This process's variables; on a machine without an accelerator also the one that lets SGLang be imported there."""
    from sglang_dspark import platforms

    engine = {"SGLANG_USE_CPU_ENGINE": "1"} if platforms.current().name == "cpu" else {}
    return {**engine, **os.environ}


def _installed() -> bool:
    from importlib.util import find_spec

    return find_spec("sglang") is not None
