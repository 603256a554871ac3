"""The child process of `executors.INTERPRETER`: reads case names, answers with the written storages."""

from __future__ import annotations

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from tests.parity.interpreter import answer_until_end
from tests.parity.qk_norm_rope.cases import CASES, problem


def run(name: str) -> dict:
    """Run the case with the interpreted kernel."""
    given = problem(next(case for case in CASES if case.name == name))
    qk_norm_rope.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "triton").run(*given.rows())
    return {name: storage.view(torch.uint8).numpy() for name, storage in given.storages.items()}


answer_until_end(run)
