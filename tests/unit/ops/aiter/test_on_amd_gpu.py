"""The real AITER on a real GPU, in parity: skipped, and seen to be, everywhere else."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.context_kv import aiter_backend as context_kv
from sglang_dspark.ops.context_kv import aiter_candidates as candidates
from sglang_dspark.ops.qk_norm_rope import aiter_backend as qk_norm_rope
from tests.parity.cases import CASES
from tests.parity.qk_norm_rope.cases import CASES as QUERY_CASES

from . import parity


def missing() -> str:
    """Why this cannot run here, empty when it can."""
    if not torch.cuda.is_available() or torch.version.hip is None:
        return "no AMD GPU"
    try:
        signatures.load("aiter")
    except signatures.Unusable as unusable:
        return str(unusable)
    return ""


MISSING = missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"aiter/gpu: {MISSING}")


# What the fp8 bound leaves open: a NaN stored as a number, and e4m3fnuz's negative zero.
OPEN = ("fp8_not_finite", "fp8_fnuz_not_finite", "fp8_fnuz_negative_zero")
PAIRS = [
    (one, case)
    for one in candidates.CANDIDATES
    for case in CASES
    if case.name not in OPEN and parity.context_covers(one, case)
]


@pytest.mark.parametrize(("candidate", "case"), PAIRS, ids=[f"{one.name}-{case.name}" for one, case in PAIRS])
def test_context_kv(candidate, case):
    platform = platforms.current()
    if case.pool_dtype and parity.own_fp8(platform, case).fp8_format != platform.fp8_format:
        pytest.skip("the other chip's fp8")
    if unusable := context_kv._candidate_refusals(candidate, parity.context_problem(case).spec):
        pytest.skip("; ".join(unusable))
    given = parity.context_problem(case, "cuda:0")
    context_kv._bind(candidate, given.spec, given.tables)(*given.rows())
    parity.check_context(candidate.name, case, [storage.cpu() for storage in given.storages])


@pytest.mark.parametrize("case", [*filter(parity.query_covers, QUERY_CASES)], ids=lambda case: case.name)
def test_qk_norm_rope(case):
    given = parity.query_problem(case, "cuda:0")
    if unusable := qk_norm_rope.refusals(platforms.current(), given.spec):
        pytest.skip("; ".join(unusable))
    qk_norm_rope.build(platforms.current(), given.spec, given.tables)(*given.rows())
    parity.check_query(case, {name: storage.cpu() for name, storage in given.storages.items()})
