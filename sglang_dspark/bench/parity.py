"""Parity before timing: the repository's own parity suite on this machine, and the same cases replayed from a graph.

The suite (`tests/parity`) runs in a process of its own. A graph is captured with one case's inputs, then replayed with
others, in place: a kernel that reads an address, a size or a commit length at capture instead of at replay fails there.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import reference
from sglang_dspark.ops.dispatch import NoBackend
from sglang_dspark.platforms import Platform

from .environment import ROOT
from .stopwatch import Machine

SUITE = "tests/parity/test_context_kv.py"
GRAPH_CASES = (
    *("plain", "one_token", "many_tokens", "five_layers", "heads_1", "heads_4", "strides_of_their_own", "interleaved"),
    *("holes", "all_holes", "uneven_commits", "commits_and_holes", "garbage_positions", "slots_of_each_layer"),
    *("fp8_scales", "fp8_fnuz_scales"),
)


class ParityFailed(RuntimeError):
    """A backend does not follow the law here, or could not be checked. Nothing may be timed."""


def run_suite(platform: Platform, backends: Sequence[str], timeout_s: float, selection: str = "") -> str:
    """Run every case for the backends on this platform's device; returns pytest's last line.

    Each backend must really have run: the suite is told to fail when one of them was skipped.
    """
    executor = "cpu" if platform.device_type == "cpu" else "gpu"
    wanted = " or ".join(f"{backend}/{executor}" for backend in backends)
    expression = f"({wanted}) and {selection}" if selection else wanted
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE, "-k", expression]
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1" if executor == "cpu" else "0",
        "DSPARK_REQUIRE_EXECUTORS": ",".join(f"context_kv/{backend}/{executor}" for backend in backends),
    }
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ParityFailed(f"the parity suite did not end within {timeout_s:.0f} s: give it more --budget-s") from error
    output = run.stdout + run.stderr
    if run.returncode:
        tail = "\n".join(output.splitlines()[-40:])
        raise ParityFailed(f"{' '.join(command)} failed with status {run.returncode}:\n{tail}")
    return output.strip().splitlines()[-1]


def check_replays(
    platform: Platform, backend: str, machine: Machine, device: str, names: Sequence[str] = GRAPH_CASES
) -> int:
    """Replay each case that the backend covers, with other inputs each time; returns how many replays were compared."""
    cases = _suite("cases")

    compared = 0
    for case in cases.CASES:
        if case.name not in names:
            continue
        given = cases.problem(case, device)
        try:
            call = context_kv.choose(platform, given.spec, given.tables, backend).run
        except NoBackend:
            continue
        what = f"{backend}, case {case.name} from a graph"
        try:
            compared += _compare_replays(machine, given, call, _changes(partial(cases.problem, case)))
        except AssertionError as error:
            raise ParityFailed(f"{what}: {error}") from error
        except RuntimeError as error:
            raise ParityFailed(f"{what} cannot be captured or replayed: {error}") from error
    return compared


def _compare_replays(machine: Machine, given: Any, call: Callable[..., None], changes: Iterator[Any]) -> int:
    before = [storage.clone() for storage in given.storages]
    replay = machine.captured(partial(call, *given.rows()))
    for number, changed in enumerate(changes):
        for storage, old in zip(given.storages, before, strict=True):
            storage.copy_(old)
        for name in ("kv", "positions", "slots", "commit_lens"):
            if getattr(given, name) is not None:
                getattr(given, name).copy_(getattr(changed, name))
        replay()
        machine.wait()
        try:
            _check_against_law(changed, [storage.cpu() for storage in given.storages])
        except AssertionError as error:
            raise AssertionError(f"replay {number}: {error}") from error
    return number + 1


def _changes(problem: Callable[[], Any]) -> Iterator[Any]:
    """The case as it is; other values for every token; and no row written. Each has pools of its own."""
    yield problem()
    given = problem()
    commit_lens = given.commit_lens
    yield replace(
        given,
        kv=given.kv.flip(0) * 0.5,
        positions=given.positions.roll(1),
        slots=given.slots.roll(1, -1),
        commit_lens=None if commit_lens is None else commit_lens.flip(0),
    )
    nothing = problem()
    yield replace(nothing, slots=nothing.slots.clone().fill_(-1))


def _check_against_law(expected: Any, found: list[Any]) -> None:
    """As the suite compares: everything bit for bit, K within its bound. ``expected`` is written by the reference."""
    suite, check_k = _suite("test_context_kv"), _suite("bounds").check_k
    positions, slots = suite.lawful(expected)
    reference.write(expected.spec, expected.tables, expected.kv, positions, slots, expected.commit_lens)
    found_k, found_rest = suite.written_k(expected, found)
    expected_k, expected_rest = suite.written_k(expected, expected.storages)
    suite.check_rest(found_rest, expected_rest)
    check_k(expected, found_k, expected_k, *suite.written(expected)[:2])


def _suite(name: str) -> Any:
    """A module of the parity suite. It is imported only when needed: it needs pytest, and this checkout."""
    try:
        return importlib.import_module(f"tests.parity.{name}")
    except ImportError as error:
        raise ParityFailed(
            f"the parity suite cannot be imported ({error}): install this checkout with its `test` extra, run from its "
            "root, and see that no other package named `tests` is installed"
        ) from error
