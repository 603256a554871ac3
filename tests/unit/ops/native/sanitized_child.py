"""The child process of `test_sanitizers`: the parity cases, named and drawn, with the library on the command line.

With "short" the cos/sin table is said to be one row longer than it is, and the last row is read.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import host_backend
from tests.parity.cases import CASES, Case, Problem, problem
from tests.parity.executors import native
from tests.parity.generated import context_cases
from tests.unit.ops.native.sanitized_run import run_all


def exact(given: Problem) -> Problem:
    """The same, with every tensor in an allocation of just its size, where the sanitizer sees a step outside."""
    tables = given.tables
    fields = {"norm_multipliers": tables.norm_multipliers.clone(), "cos_sin": tables.cos_sin.clone()}
    return replace(
        given, tables=replace(tables, **fields), kv=given.kv.clone() if given.kv.is_contiguous() else given.kv
    )


def run(case: Case, fault: str = "") -> None:
    given = exact(problem(case))
    writer = context_kv.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "host").run
    if fault and case.tokens:
        writer.arguments.last_position += 1
        given = replace(given, positions=torch.full_like(given.positions, given.tables.num_positions))
    writer(*given.rows())


def main(library: str, fault: str = "") -> None:
    loaded = ctypes.CDLL(library)
    loaded.context_kv_check.restype = ctypes.c_int64
    host_backend.library = lambda: loaded
    cases = [case for case in CASES if native(case) and not case.breaks_contract]
    run_all(cases, context_cases(native=True), run, fault)


main(*sys.argv[1:])
