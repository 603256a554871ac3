"""The child process of `executors.INTERPRETER`: reads case names, answers with the written pools."""

from __future__ import annotations

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from tests.parity.cases import CASES, problem
from tests.parity.interpreter import answer_until_end


def run(name: str) -> list:
    """Write the case's pools with the interpreted kernel."""
    case = next(case for case in CASES if case.name == name)
    given = problem(case)
    context_kv.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "triton").run(*given.rows())
    return [storage.view(torch.int16).numpy() for storage in given.storages]


answer_until_end(run)
