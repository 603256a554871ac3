"""The context KV writer through a fake AITER: every candidate in parity, the order they are taken in, the refusals."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from sglang_dspark.ops import context_kv
from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.context_kv import aiter_backend
from sglang_dspark.ops.context_kv.aiter_candidates import BOUNDS, CANDIDATES, FP8_BOUND, Candidate
from sglang_dspark.ops.dispatch import NoBackend, NotCovered
from tests.parity.cases import CASES

from . import fake_aiter, parity

pytestmark = pytest.mark.usefixtures("nothing_imported")

CASE = {case.name: case for case in CASES}
PAIRS = [(one, case) for one in CANDIDATES for case in CASES if parity.context_covers(one, case)]
MROPE, QKNORM, UNFUSED = CANDIDATES
FUNCTIONS = {
    "fused_qk_norm_mrope": "fused_qk_norm_mrope_3d_cache_pts_quant_shuffle",
    "fused_qknorm_idxrqknorm": "fused_qknorm_idxrqknorm",
    "norm_rope_store": "rms_norm_opus",
}


def all_but(candidate: Candidate) -> dict[str, None]:
    """What to leave out of AITER so that one candidate is left."""
    return {function: None for name, function in FUNCTIONS.items() if name != candidate.name}


@pytest.mark.parametrize(("candidate", "case"), PAIRS, ids=[f"{one.name}-{case.name}" for one, case in PAIRS])
def test_matches_the_law(candidate, case, amd, install):
    """Fault 5. An argument in another's place, a head or half taken for another, a skipped row written or read wild."""
    install(**all_but(candidate))
    given = parity.context_problem(case)
    choice = context_kv.choose(parity.own_fp8(amd, case), given.spec, given.tables, "aiter")
    fake_aiter.CALLS.clear()
    choice.run(*given.rows())
    assert choice.run.candidate == candidate.name
    # A compiled function's name is noted by its wrapper, so each wanted function ran once a layer.
    assert fake_aiter.CALLS == [one.name for one in candidate.wanted] * (case.layers if case.tokens else 0)
    parity.check_context(candidate.name, case, list(given.storages))


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda one: one.name)
def test_new_multipliers_are_taken_over_in_place(candidate, amd, install):
    """An online update of the draft's weights changes the multipliers, of which AITER is given copies."""
    install(**all_but(candidate))
    given = parity.context_problem(CASE["plain"])
    multipliers = given.tables.norm_multipliers
    right = multipliers.clone()
    multipliers.copy_(parity.representable(right.flip(-1)))
    choice = context_kv.choose(amd, given.spec, given.tables, "aiter")
    weights = choice.run.weights
    multipliers.copy_(right)
    choice.refresh()
    assert choice.run.weights is weights
    choice.run(*given.rows())
    parity.check_context(candidate.name, CASE["plain"], list(given.storages))


def test_uncovered_cases_are_few():
    left_out = {one.name: {c.name for c in CASES} - {c.name for n, c in PAIRS if n is one} for one in (MROPE, UNFUSED)}
    assert left_out["fused_qk_norm_mrope"] == {
        "padded_pool_rows", "odd_pool_stride", "strides_of_their_own", "dim_96_rotary_32", "interleaved",
        "interleaved_48", "float32", "float32_interleaved", "fp8_everything",
    }  # fmt: skip
    assert {name for name in left_out["norm_rope_store"] if not name.startswith("fp8")} == {
        "strides_of_their_own", "float32", "float32_interleaved",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("replaced", "taken"),
    [
        ({}, "fused_qk_norm_mrope"),
        ({FUNCTIONS["fused_qk_norm_mrope"]: None}, "fused_qknorm_idxrqknorm"),
        ({FUNCTIONS["fused_qk_norm_mrope"]: lambda qkv: None}, "fused_qknorm_idxrqknorm"),
        ({FUNCTIONS["fused_qk_norm_mrope"]: None, "fused_qknorm_idxrqknorm": None}, "norm_rope_store"),
    ],
)
def test_the_first_that_is_there_is_taken(replaced, taken, amd, install):
    install(**replaced)
    given = parity.context_problem(CASE["plain"])
    assert context_kv.choose(amd, given.spec, given.tables, "aiter").run.candidate == taken


def test_tables_may_pass_the_first_over(amd, install, caplog):
    """Padded rows: released versions of the first candidate check that pools are contiguous, others follow strides."""
    install()
    given = parity.context_problem(CASE["padded_pool_rows"])
    with caplog.at_level("INFO"):
        assert context_kv.choose(amd, given.spec, given.tables, "aiter").run.candidate == "fused_qknorm_idxrqknorm"
    assert "calls fused_qknorm_idxrqknorm (refused: fused_qk_norm_mrope: pool rows are apart" in caplog.text


def test_nothing_is_left(amd, install):
    install(fused_qknorm_idxrqknorm=None, rms_norm_opus=None, reshape_and_cache_flash=lambda key: None)
    given = parity.context_problem(CASE["interleaved"])
    assert aiter_backend.refusals(amd, given.spec) == [
        "fused_qk_norm_mrope: interleaved rotary is not covered: it reads cos and sin past their row",
        "fused_qknorm_idxrqknorm: interleaved rotary is not covered",
        "norm_rope_store: aiter has no rms_norm_opus",
        "norm_rope_store: reshape_and_cache_flash has no parameter value, key_cache, value_cache, slot_mapping, "
        "kv_cache_dtype, k_scale, v_scale",
    ]


def test_without_aiter_there_is_one_refusal(amd):
    assert aiter_backend.refusals(amd, parity.context_problem(CASE["plain"]).spec) == ["aiter is not installed"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pool_layout": "hnd"}, "pool layout hnd is not covered, only nhd"),
        ({"kv_dtype": torch.float32}, "kv dtype torch.float32 is not covered, only bfloat16"),
        ({"pool_dtype": torch.float32}, "pool dtype torch.float32 is not covered, only kv's and gfx942's own fp8"),
        ({"pool_dtype": torch.float8_e4m3fn}, "pool dtype torch.float8_e4m3fn is not covered, only kv's and gfx942's"),
    ],
)
def test_what_no_candidate_covers_is_refused_without_an_import(fields, reason, amd, monkeypatch):
    monkeypatch.setattr(signatures.importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    found = aiter_backend.refusals(amd, replace(parity.context_problem(CASE["plain"]).spec, **fields))
    assert any(one.startswith(reason) for one in found)


def test_the_other_candidates_refuse_fp8():
    spec = parity.context_problem(CASE["fp8_fnuz"]).spec
    assert MROPE.refusals(spec) == []
    assert QKNORM.refusals(spec)[0].endswith("it has no scale of a whole pool")
    assert UNFUSED.refusals(spec)[0].endswith("it converts without clamping")


@pytest.mark.parametrize(
    ("case", "candidate", "fields", "reason"),
    [
        ("dim_96_rotary_32", MROPE, {}, "head_dim 96 is not covered, only 64, 128, 256"),
        ("plain", MROPE, {"rotary_dim": 36}, "rotary_dim 36 is no multiple of 8"),
        ("dim_64_rotary_16", QKNORM, {}, "head_dim 64 is not covered, only 128"),
        ("plain", QKNORM, {"rotary_dim": 36}, "rotary_dim 36 is no multiple of 8"),
    ],
)
def test_refusals_of_a_candidate(case, candidate, fields, reason):
    assert reason in candidate.refusals(replace(parity.context_problem(CASE[case]).spec, **fields))


@pytest.mark.parametrize(
    ("case", "candidate", "reason"),
    [
        ("odd_pool_stride", MROPE, "pool rows are apart, and released versions take contiguous pools only"),
        ("odd_pool_stride", QKNORM, "pool rows are aligned to 2 bytes, not to 8"),
    ],
)
def test_refusals_of_tables(case, candidate, reason):
    given = parity.context_problem(CASE[case])
    assert reason in candidate.table_refusals(given.spec, given.tables)


def test_rows_of_k_and_v_apart_differently():
    given = parity.context_problem(CASE["strides_of_their_own"])
    assert UNFUSED.table_refusals(given.spec, given.tables) == ["rows of K and V are different distances apart"]


def test_weights_that_bf16_does_not_hold_are_refused(amd, install):
    """AITER reads w in bf16: multipliers that no bf16 checkpoint gives would be rounded without a word."""
    install()
    given = parity.context_problem(CASE["plain"])
    tables = replace(given.tables, norm_multipliers=given.tables.norm_multipliers * 1.0001)
    with pytest.raises(NoBackend, match="norm multipliers are not 1 [+] a weight in torch.bfloat16"):
        context_kv.choose(amd, given.spec, tables, "aiter")


# What a signature does not show: each of these has the right one.


def writes_negative_slots(**arguments):
    arguments["slot_mapping"] = arguments["slot_mapping"].clamp(min=1)
    fake_aiter.fused_qknorm_idxrqknorm(**arguments)


def multiplies_by_the_plain_weight(**arguments):
    arguments["k_norm_weight"] = arguments["k_norm_weight"] - 1
    fake_aiter.fused_qknorm_idxrqknorm(**arguments)


def swaps_cos_and_sin(**arguments):
    arguments["cos_sin_cache"] = torch.cat(arguments["cos_sin_cache"].chunk(2, 1)[::-1], 1)
    fake_aiter.fused_qknorm_idxrqknorm(**arguments)


def scales_v(**arguments):
    heads = arguments["qkv"].unflatten(1, (-1, 128))
    heads[:, 1 + arguments["num_kv_heads"] :] *= 0.5
    fake_aiter.fused_qknorm_idxrqknorm(**arguments)


def does_nothing(**arguments):
    pass


def raises(**arguments):
    raise RuntimeError("block_size must be 16")


@pytest.mark.parametrize(
    ("drifted", "reason"),
    [
        (writes_negative_slots, "its trial put [0-9]+ elements out of bounds"),
        (multiplies_by_the_plain_weight, "its trial put [0-9]+ elements out of bounds"),
        (swaps_cos_and_sin, "its trial put [0-9]+ elements out of bounds"),
        (scales_v, "its trial put [0-9]+ elements out of bounds"),
        (does_nothing, "its trial put [0-9]+ elements out of bounds"),
        (raises, r"its trial failed \(RuntimeError: block_size must be 16\)"),
    ],
)
def test_a_function_that_does_something_else_fails_its_trial(drifted, reason, amd, install):
    """Fault 2. A function that has the right parameters and computes nothing, or something else, is not used."""

    def stands(*arguments):
        return drifted(**dict(zip(names, arguments, strict=True)))

    signature = fake_aiter.inspect.signature(fake_aiter.fused_qknorm_idxrqknorm)
    names = list(signature.parameters)
    stands.__signature__ = signature
    install(**all_but(QKNORM), fused_qknorm_idxrqknorm=stands)
    given = parity.context_problem(CASE["plain"])
    before = [pool.clone() for pool in given.storages]
    with pytest.raises(NotCovered, match=f"fused_qknorm_idxrqknorm: {reason}"):
        aiter_backend.build(amd, given.spec, given.tables)
    for pool, old in zip(given.storages, before, strict=True):
        assert torch.equal(parity.as_bytes(pool), parity.as_bytes(old)), "the trial wrote into the pools"


def test_bounds_have_reasons():
    assert set(BOUNDS) == {one.name for one in CANDIDATES}
    assert all(bound.reason for bound in (*BOUNDS.values(), FP8_BOUND))
    assert "aiter" in sys.modules and sys.modules["aiter"] is None  # this file never reached a real one
