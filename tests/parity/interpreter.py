"""Triton's interpreter in a process of its own: it must be switched on before anything imports Triton.

The parent's half is `TritonInterpreter`; the child is a script that calls `answer_until_end`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class TritonInterpreter:
    """Asks a child for the answer to a case's name; the child is started with the first question."""

    def __init__(self, child: Path) -> None:
        self._child = child
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, name: str) -> Any:
        """The child's answer. It builds the same tensors from the case's name."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        pickle.dump(name, process.stdin)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def stop(self) -> None:
        """End the child, if one was started."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in (str(ROOT), *sys.path) if path)
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        return subprocess.Popen(
            [sys.executable, str(self._child)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )


def answer_until_end(run: Callable[[str], Any]) -> None:
    """In the child: answer until standard input ends. What prints goes to standard error, out of the answers' way."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    sys.stdout = sys.stderr
    while True:
        try:
            name = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = run(name)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()
