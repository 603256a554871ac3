"""The child process of `test_sanitizers`: the parity cases, named and drawn, with the library on the command line.

With "short" the cos/sin table is said to be one row longer than it is, and the last row is read.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace

import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.qk_norm_rope import host_backend, native_arguments
from tests.parity.generated import query_cases
from tests.parity.qk_norm_rope.cases import CASES, Case, Problem, problem
from tests.unit.ops.native.sanitized_run import run_all


def exact(given: Problem) -> Problem:
    """The same, with every table in an allocation of just its size, where the sanitizer sees a step outside."""
    names = ("q_norm_multipliers", "k_norm_multipliers", "cos_sin")
    return replace(given, tables=replace(given.tables, **{name: getattr(given.tables, name).clone() for name in names}))


def run(case: Case, fault: str = "") -> None:
    given = exact(problem(case))
    op = qk_norm_rope.choose(platforms.describe("cpu", "cpu"), given.spec, given.tables, "host").run
    if fault and case.tokens:
        op.arguments.last_position += 1
        given = replace(given, positions=torch.full_like(given.positions, given.tables.num_positions))
    op(*given.rows())


def main(library: str, fault: str = "") -> None:
    loaded = ctypes.CDLL(library)
    loaded.qk_norm_rope_check.restype = ctypes.c_int64
    host_backend.library = lambda: loaded
    lawful = [case for case in CASES if not case.breaks_contract]
    cases = [case for case in lawful if not native_arguments.refusals(problem(case).spec)]
    run_all(cases, query_cases(native=True), run, fault)


main(*sys.argv[1:])
