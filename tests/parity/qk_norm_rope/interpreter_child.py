"""The child process of `executors.TritonInterpreter`: reads case names, answers with the written storages."""

from __future__ import annotations

import os
import pickle
import sys
import traceback

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from tests.parity.qk_norm_rope.cases import CASES, problem


def run(name: str) -> dict:
    """Run the case with the interpreted kernel."""
    given = problem(next(case for case in CASES if case.name == name))
    qk_norm_rope.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "triton").run(*given.rows())
    return {name: storage.view(torch.uint8).numpy() for name, storage in given.storages.items()}


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
            answer: dict | str = run(name)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


main()
