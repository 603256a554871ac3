"""Cases that hypothesis draws, of both ops: every backend that runs on a CPU against the law, the law against float64.

`DSPARK_NIGHTLY=1` draws many more, other ones each time. The invariants are those of the named cases: whole storages,
bit for bit but for Q and K, which have a bound.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv, qk_norm_rope
from sglang_dspark.ops.context_kv.rows import written_rows

from . import cases, executors, generated, test_context_kv
from .generated import context_cases, profile, query_cases
from .qk_norm_rope import cases as query_case
from .qk_norm_rope import executors as query_executors
from .qk_norm_rope import test_qk_norm_rope

ON_A_CPU = ("torch/cpu", "torch/device-path-on-cpu", "host/cpu", "hip/stand-in-driver")
CPU = platforms.describe("cpu", "cpu")
# Where float32 itself leaves the range that float64 still has.
OUT_OF_RANGE = ("huge", "any_bits")


def check_all(op: str, all_executors: tuple, case: Any, check_law: Any, ran: Any) -> None:
    """Run the case on every executor that covers it."""
    for executor in all_executors:
        if executor.name.removeprefix(f"{op}/") in ON_A_CPU and not executor.missing and executor.covers(case):
            check_law(case, executor.run(case))
            ran(f"{executor.name}/generated")


@pytest.mark.parametrize("native", [True, False], ids=["native", "any_shape"])
def test_drawn_cases_of_the_context_writer(native: bool, ran):
    @profile(examples=40, nightly=1000)
    @given(context_cases(native))
    def check(case: cases.Case) -> None:
        check_all("context_kv", executors.EXECUTORS, case, test_context_kv.check_law, ran)
        if case.pool_dtype is None and case.values not in OUT_OF_RANGE:
            test_context_kv.test_reference_matches_float64(case, ran)

    check()


@pytest.mark.parametrize("native", [True, False], ids=["native", "any_shape"])
def test_drawn_cases_of_the_query_block(native: bool, ran):
    @profile(examples=40, nightly=1000)
    @given(query_cases(native))
    def check(case: query_case.Case) -> None:
        check_all("qk_norm_rope", query_executors.EXECUTORS, case, test_qk_norm_rope.check_law, ran)
        if case.values not in OUT_OF_RANGE:
            test_qk_norm_rope.test_reference_matches_float64(case, ran)

    check()


# --- rows that break the contract ------------------------------------------------------------------------------------


def break_tensor(draw: st.DrawFn, rows: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """One tensor of a call with another type, shape, device or order."""
    name = draw(st.sampled_from([name for name, tensor in rows.items() if tensor is not None]))
    tensor = rows[name]
    kinds = ["dtype", "longer", "shorter", "dimension", "device"]
    if tensor.numel() > 1:  # one element has no stride
        kinds.append("stride")
    kind = draw(st.sampled_from(kinds))
    if kind == "dtype":
        others = (torch.float16, torch.int32, torch.uint8) if name != "commit_lens" else (torch.float32, torch.int16)
        tensor = tensor.to(draw(st.sampled_from(others)))
    elif kind == "longer":
        tensor = torch.cat((tensor, tensor[:1])) if name != "commit_lens" else tensor.new_zeros(tensor.shape[0] + 100)
    elif kind == "shorter":
        tensor = tensor[:-1] if name != "commit_lens" else tensor[:0]
    elif kind == "dimension":
        tensor = tensor[None]
    elif kind == "device":
        tensor = tensor.to("meta")
    elif tensor.dim() == 1:
        tensor = torch.cat((tensor, tensor))[::2]
    else:
        tensor = torch.stack((tensor, tensor), dim=-1)[..., 0]
    return {**rows, name: tensor}


def check_refusal(run: Any, rows: dict[str, Any], storages: list[torch.Tensor], op: str) -> None:
    """The call raises the documented error, with what was asked and found, and no byte has changed."""
    before = [storage.clone() for storage in storages]
    with pytest.raises((ValueError, IndexError), match=f"^{op}.*(expected|asks for).*(found|outside).*: "):
        run(**rows)
    for storage, old in zip(storages, before, strict=True):
        assert torch.equal(storage.view(torch.uint8), old.view(torch.uint8))


@pytest.mark.parametrize("backend", ["torch", "host"])
def test_broken_rows_of_the_context_writer(backend: str):
    if backend == "host" and executors.NO_COMPILER:
        pytest.skip(executors.NO_COMPILER)

    @profile(examples=60, nightly=600)
    @given(st.data(), context_cases(native=True))
    def check(data: st.DataObject, case: cases.Case) -> None:
        given_case = cases.problem(case)
        if case.tokens < 2 or (backend == "torch" and case.pool_dtype):
            return
        rows = dict(zip(("kv", "positions", "slots", "commit_lens"), given_case.rows(), strict=True))
        written = written_rows(given_case.slots, given_case.commit_lens).nonzero().flatten().tolist()
        if written and data.draw(st.booleans()):
            token, name = data.draw(st.sampled_from(written)), data.draw(st.sampled_from(("positions", "slots")))
            beyond = [given_case.tables.num_slots, cases.FAR, 2**63 - 1]
            value = data.draw(generated.garbage if name == "positions" else st.sampled_from(beyond))
            rows[name][token] = value
        else:
            rows = break_tensor(data.draw, rows)
        run = context_kv.choose(CPU, given_case.spec, given_case.tables, backend).run
        check_refusal(run, rows, list(given_case.storages), "context_kv")

    check()


@pytest.mark.parametrize("backend", ["torch", "host"])
def test_broken_rows_of_the_query_block(backend: str):
    if backend == "host" and query_executors.NO_COMPILER:
        pytest.skip(query_executors.NO_COMPILER)

    @profile(examples=60, nightly=600)
    @given(st.data(), query_cases(native=True))
    def check(data: st.DataObject, case: query_case.Case) -> None:
        given_case = query_case.problem(case)
        if case.tokens < 2:
            return
        rows = dict(zip(("qkv", "positions", "slots", "q_fp8_out"), given_case.rows(), strict=True))
        if data.draw(st.booleans()):
            rows["positions"][data.draw(st.integers(0, case.tokens - 1))] = data.draw(generated.garbage)
        else:
            rows = break_tensor(data.draw, rows)
        run = qk_norm_rope.choose(CPU, given_case.spec, given_case.tables, backend).run
        check_refusal(run, rows, list(given_case.storages.values()), "qk_norm_rope")

    check()


# --- specs -----------------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.integers(-3, 5), st.sampled_from((64, 128, 2**31, -(2**63))))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
DTYPES = st.sampled_from(
    (torch.bfloat16, torch.float32, torch.float16, torch.int8, *context_kv.spec.FP8_DTYPES.values())
)
COMMON = {
    "num_kv_heads": SIZES,
    "head_dim": SIZES,
    "rotary_dim": SIZES,
    "is_neox": st.booleans(),
    "eps": NUMBERS,
    "pool_dtype": DTYPES,
    "cos_sin_dtype": DTYPES,
    "pool_layout": st.sampled_from(("nhd", "hnd", "page_major", "block_scaled", "", "NHD")),
}
SCALES = st.one_of(st.none(), st.lists(NUMBERS, max_size=3).map(tuple))
SPECS = st.one_of(
    st.builds(
        lambda **fields: (context_kv.ContextKVSpec, fields),
        **COMMON,
        num_layers=SIZES,
        kv_dtype=DTYPES,
        k_scales=SCALES,
        v_scales=SCALES,
        slots_per_layer=st.booleans(),
    ),
    st.builds(
        lambda **fields: (qk_norm_rope.QKNormRopeSpec, fields),
        **COMMON,
        num_q_heads=SIZES,
        qkv_dtype=DTYPES,
        k_scale=st.one_of(st.none(), NUMBERS),
        v_scale=st.one_of(st.none(), NUMBERS),
        q_fp8_dtype=st.one_of(st.none(), DTYPES),
        q_scale=st.one_of(st.none(), NUMBERS),
    ),
)


def test_a_spec_is_good_or_a_value_error():
    """And every backend says of a good one whether it covers it."""

    @profile(examples=400, nightly=10_000)
    @given(SPECS)
    def check(drawn: tuple[Any, dict[str, Any]]) -> None:
        kind, fields = drawn
        op = context_kv if kind is context_kv.ContextKVSpec else qk_norm_rope
        try:
            spec = kind(**fields)
        except ValueError as error:
            assert str(error).startswith(op.OP.name) and "found" in str(error)
            return
        assert 2 <= spec.rotary_dim <= spec.head_dim and spec.num_kv_heads > 0 and spec.eps >= 0
        for backend in op.OP.backends:
            assert all(isinstance(reason, str) and reason for reason in backend.refusals(CPU, spec))

    check()
