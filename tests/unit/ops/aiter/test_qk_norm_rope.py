"""The query block's op through a fake AITER: in parity, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.dispatch import NoBackend
from sglang_dspark.ops.qk_norm_rope import aiter_backend
from tests.parity.qk_norm_rope.cases import CASES

from . import fake_aiter, parity

pytestmark = pytest.mark.usefixtures("nothing_imported")

NAME = "fused_qkv_split_qk_norm_rope_cache"
CASE = {case.name: case for case in CASES}
COVERED = [case for case in CASES if parity.query_covers(case)]


@pytest.mark.parametrize("case", COVERED, ids=lambda case: case.name)
def test_matches_the_law(case, amd, install):
    """Q, K and V mixed up, weights in each other's place, Q left as it was, a skipped token that is stored."""
    install()
    given = parity.query_problem(case)
    choice = qk_norm_rope.choose(amd, given.spec, given.tables, "aiter")
    fake_aiter.CALLS.clear()
    choice.run(*given.rows())
    assert fake_aiter.CALLS == [NAME] * (case.tokens > 0)
    parity.check_query(case, given.storages)


def test_new_multipliers_are_taken_over_in_place(amd, install):
    """An online update of the draft's weights changes the multipliers, of which AITER is given copies."""
    install()
    given = parity.query_problem(CASE["plain"])
    both = given.tables.q_norm_multipliers, given.tables.k_norm_multipliers
    right = [multipliers.clone() for multipliers in both]
    for multipliers in both:
        multipliers.copy_(multipliers.flip(-1))
    choice = qk_norm_rope.choose(amd, given.spec, given.tables, "aiter")
    for multipliers, value in zip(both, right, strict=True):
        multipliers.copy_(value)
    choice.refresh()
    choice.run(*given.rows())
    parity.check_query(CASE["plain"], given.storages)


def test_uncovered_cases_are_few():
    left_out = {case.name for case in CASES} - {case.name for case in COVERED}
    assert {name for name in left_out if not name.startswith("fp8")} == {
        "no_pools", "dim_96_rotary_32", "float32", "float32_interleaved", "float32_fp8",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pool_layout": "hnd"}, "pool layout hnd is not covered, only nhd"),
        ({"qkv_dtype": torch.float32}, "qkv dtype torch.float32 is not covered, only bfloat16"),
        ({"pool_dtype": torch.float32}, "pool dtype torch.float32 differs from qkv dtype torch.bfloat16"),
        ({"pool_dtype": torch.float8_e4m3fnuz}, "fp8 pool (torch.float8_e4m3fnuz) is not covered: it converts without"),
        ({"q_fp8_dtype": torch.float8_e4m3fnuz}, "an fp8 query is not covered"),
        ({"head_dim": 96}, "head_dim 96 is no power of two"),
        ({"num_q_heads": 3}, "3 query heads are no multiple of 2 KV heads"),
    ],
)
def test_refused_without_an_import(fields, reason, amd, monkeypatch):
    monkeypatch.setattr(signatures.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    found = aiter_backend.refusals(amd, replace(parity.query_problem(CASE["plain"]).spec, **fields))
    assert any(one.startswith(reason) for one in found)


def test_without_aiter_there_is_one_refusal(amd):
    assert aiter_backend.refusals(amd, parity.query_problem(CASE["plain"]).spec) == ["aiter is not installed"]


def test_a_drifted_signature(amd, install):
    older = fake_aiter.without(fake_aiter.fused_qkv_split_qk_norm_rope_cache, "kv_cache_layout")
    install(fused_qkv_split_qk_norm_rope_cache=older)
    found = aiter_backend.refusals(amd, parity.query_problem(CASE["plain"]).spec)
    assert found == [f"{NAME} has no parameter kv_cache_layout"]


def test_no_pools(amd, install):
    install()
    given = parity.query_problem(CASE["no_pools"])
    with pytest.raises(NoBackend, match="aiter: no pools: the function cannot do without"):
        qk_norm_rope.choose(amd, given.spec, given.tables, "aiter")


def swaps_weights(**arguments):
    arguments["q_weight"], arguments["k_weight"] = arguments["k_weight"], arguments["q_weight"]
    return fake_aiter.fused_qkv_split_qk_norm_rope_cache(**arguments)


def stores_v_alone(**arguments):
    arguments["key_cache"] = arguments["key_cache"].clone()
    return fake_aiter.fused_qkv_split_qk_norm_rope_cache(**arguments)


def raises(**arguments):
    raise ValueError("expects a CUDA/HIP device")


@pytest.mark.parametrize(
    ("drifted", "reason"),
    [
        (swaps_weights, "its trial put [0-9]+ elements out of bounds"),
        (stores_v_alone, "its trial put [0-9]+ elements out of bounds"),
        (raises, r"its trial failed \(ValueError: expects a CUDA/HIP device\)"),
    ],
)
def test_a_function_that_does_something_else_fails_its_trial(drifted, reason, amd, install):
    def stands(*arguments):
        return drifted(**dict(zip(signature.parameters, arguments, strict=True)))

    signature = fake_aiter.inspect.signature(fake_aiter.fused_qkv_split_qk_norm_rope_cache)
    stands.__signature__ = signature
    install(fused_qkv_split_qk_norm_rope_cache=stands)
    given = parity.query_problem(CASE["plain"])
    with pytest.raises(NoBackend, match=f"aiter: {reason}"):
        qk_norm_rope.choose(amd, given.spec, given.tables, "aiter")
