"""The parent's side of SGLang's serving benchmark: start it, have it run, read the JSON line that it writes.

Source of the result's names: SGLang 0.5.23, `sglang/benchmark/serving.py`, `benchmark()`.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import client_child

LATENCIES = ("ttft", "tpot", "itl", "e2e_latency")
STATISTICS = ("mean", "median", "p90", "p99")
# The result's name, and the figure's in a row.
RATES = {
    "output_throughput": "output_tokens_per_s",
    "total_throughput": "all_tokens_per_s",
    "request_throughput": "requests_per_s",
}
COUNTS = {
    "completed": "completed_count",
    "total_input_tokens": "input_tokens_count",
    "total_output_tokens": "output_tokens_count",
}


class ClientFailed(RuntimeError):
    """SGLang's benchmark could not run, or requests failed; the message says which, and where its log is."""


class SglangClient:
    """SGLang's benchmark in a child process. Use it as a context manager; its imports run while a server starts."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Describe it; nothing starts yet.

        Args:
            folder: takes its log and results.
            environment: variables beside this process's own.
            on_wait: called about once a second while it works, with the seconds so far.
        """
        self._folder = folder
        self._on_wait = on_wait
        self.log = folder / "client.log"
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._runs = 0

    def __enter__(self) -> SglangClient:
        self.log.touch()
        self._process = subprocess.Popen(
            [sys.executable, "-m", client_child.__name__, str(self.log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def run(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Run the benchmark once and return its result, request by request too.

        Raises:
            ClientFailed: it could not start or ended in an error.
        """
        if self._runs == 0:
            self._hear()  # that it is ready
        self._runs += 1
        result = self._folder / f"client-{self._runs}.jsonl"
        line = json.dumps([*arguments, "--output-file", str(result), "--output-details"])
        error = self._say(line).get("error")
        if error is not None or not result.exists():
            raise ClientFailed(f"SGLang's benchmark failed: {error or 'it wrote no result'}.\n{self._tail()}")
        return dict(json.loads(result.read_text().splitlines()[-1]))

    def _say(self, line: str) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise ClientFailed("SGLang's benchmark was not started")
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise ClientFailed(f"SGLang's benchmark has ended.\n{self._tail()}") from None
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        answers = self._process.stdout if self._process is not None else None
        began = time.monotonic()
        while answers is not None and not select.select([answers], [], [], 1.0)[0]:
            self._on_wait(time.monotonic() - began)
        line = answers.readline() if answers is not None else ""
        if not line:
            raise ClientFailed(f"SGLang's benchmark (python -m {client_child.MODULE}) ended.\n{self._tail()}")
        return dict(json.loads(line))

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([*lines, f"(the whole log is {self.log})"])


def command(arguments: Sequence[str]) -> str:
    """The run as it would be typed."""
    return shlex.join(["python", "-m", client_child.MODULE, *arguments])


def figures(result: Mapping[str, Any], asked_requests: int) -> dict[str, float]:
    """A row's figures: rates, counts and latencies.

    Raises:
        ClientFailed: not every request was answered; a rate over the others would say nothing.
    """
    if result["completed"] != asked_requests:
        reasons = [error for error in result.get("errors", ()) if error]
        reason = f"; the first failure: {reasons[0].strip()[-500:]}" if reasons else ""
        raise ClientFailed(f"asked for {asked_requests} answers, got {result['completed']}{reason}")
    found = {name: float(result[key]) for key, name in {**RATES, **COUNTS}.items()}
    found["duration_s"] = float(result["duration"])
    for what in LATENCIES:
        for statistic in STATISTICS:
            name = f"{what.removesuffix('_latency')}_{statistic.replace('median', 'p50')}_ms"
            found[name] = float(result[f"{statistic}_{what}_ms"])
    if result.get("accept_length"):
        found["accepted_length_tokens"] = float(result["accept_length"])
    return found
