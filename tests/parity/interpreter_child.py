"""The child process of `executors.TritonInterpreter`: reads case names, answers with the written pools."""

from __future__ import annotations

import os
import pickle
import sys
import traceback

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from tests.parity.cases import CASES, problem


def run(name: str) -> list:
    """Write the case's pools with the interpreted kernel."""
    case = next(case for case in CASES if case.name == name)
    given = problem(case)
    context_kv.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "triton").run(*given.rows())
    return [storage.view(torch.int16).numpy() for storage in given.storages]


def main() -> None:
    """Answer until standard input ends. Anything that prints goes to standard error, out of the answers' way."""
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


main()
