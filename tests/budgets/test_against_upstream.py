"""How many instructions SGLang's own Triton writer executes for the same rows, in the same interpreter and run.

SGLang launches it with four warps (Triton's default), of which each replicates the row; one warp is the better setting,
and is compared with as well.
"""

from __future__ import annotations

import pytest

from tests.amdgcn.chip import CHIPS
from tests.parity import emulated

from . import upstream
from .workload import rows_to_write

TIMES_FEWER = {(1, 4): 8, (4, 4): 5, (1, 1): 2, (4, 1): 2}  # by heads and upstream's warps


@pytest.fixture(scope="module")
def answer():
    """What `compile_upstream.py` answers, or the reason why there is nothing."""
    return upstream.missing() or upstream.compiled()


@pytest.mark.parametrize(("heads", "warps"), TIMES_FEWER)
@pytest.mark.parametrize("arch", CHIPS)
def test_executes_far_fewer_instructions(answer, arch, heads, warps, figure, cannot_check):
    if isinstance(answer, str):
        cannot_check(answer)
    if reason := emulated.missing(arch):
        cannot_check(reason)
    theirs, their_rows = upstream.written(answer, arch, heads, warps)
    given, our_rows = rows_to_write(heads, 16 // heads)
    ours = emulated.write(given, CHIPS[arch]).counters
    they, we = theirs.executed / their_rows, ours.executed / our_rows
    figure(
        f"{arch} bf16 H={heads}, SGLang's writer with {warps} warps (Triton {answer['triton']})",
        f"{they:.1f} instructions a row, {they / we:.1f} times ours, {theirs.round_trips} round trips, "
        f"{theirs.kinds['barrier'] // theirs.waves} barriers",
    )
    assert they / we >= TIMES_FEWER[heads, warps]
