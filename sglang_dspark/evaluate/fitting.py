"""Fits the temperatures with SGLang's own fitter, and writes the file that its server reads.

`python -m sglang.benchmark.dspark_sts_fit` (SGLang 0.5.23) searches 41 temperatures from 0.1 to 10 for the one with
the smallest calibration error of the survival, position after position, each with the temperatures before it in
place: the paper's procedure. It runs as a process of its own, on files like those that a server collects. What it
writes is kept as it is but for the errors, which it measured on the very rounds that it fitted: those of the held-out
rounds take their place.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
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


def run_sglang(module: str, arguments: Sequence[str], *, poll: Callable[[float], None] = lambda seconds: None) -> None:
    """Run one of SGLang's tools to its end.

    Args:
        module: of the tool.
        arguments: as on its command line.
        poll: called about once a second meanwhile, with the seconds so far.

    Raises:
        FitError: it ended with an error; the message holds the end of what it said.
    """
    if find_spec("sglang") is None:
        raise FitError(
            f"asked for SGLang's {module}, found no SGLang in this environment; run this where it is installed"
        )
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=tool_environment(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                poll(time.monotonic() - started)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            process.kill()  # does nothing to one that has ended
            process.wait()
        said.seek(0)
        last = "\n".join(said.read().splitlines()[-15:])
    if process.returncode:
        raise FitError(f"SGLang's {module} ended with status {process.returncode}:\n{last}")


def tool_environment() -> dict[str, str]:
    """This process's variables; on a machine without an accelerator also the one that lets SGLang be imported there."""
    from sglang_dspark import platforms

    engine = {"SGLANG_USE_CPU_ENGINE": "1"} if platforms.current().name == "cpu" else {}
    return {**engine, **os.environ}
