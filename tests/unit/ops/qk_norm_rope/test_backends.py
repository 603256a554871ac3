"""What each backend refuses, the errors only a CPU can give, and what the compiled kernels' callers check."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import qk_norm_rope
from sglang_dspark.ops.dispatch import NoBackend, NotCovered
from sglang_dspark.ops.native import driver, toolchain
from sglang_dspark.ops.qk_norm_rope import (
    cuda_backend,
    gpu_kernel,
    hip_backend,
    host_backend,
    native_arguments,
    torch_backend,
    triton_backend,
)
from tests.unit.ops.native import stand_in_driver

CPU, H200, MI300 = (platforms.describe(*one) for one in (("cpu", "cpu"), ("nvidia", "sm_90"), ("amd", "gfx942")))
BF16, E4M3FN, E4M3FNUZ = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz
NEEDS_GPU = "needs a GPU, or TRITON_INTERPRET=1"


def compiler_missing() -> str:
    try:
        host_backend.library()
    except toolchain.NotBuilt as reason:
        return str(reason)
    return ""


needs_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())
ALL = [one.BACKEND for one in (hip_backend, cuda_backend, triton_backend, host_backend, torch_backend)]
HOME = {"hip": MI300, "cuda": H200, "triton": H200, "host": CPU, "torch": H200}


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pool_layout": "hnd"}, "pool layout hnd is not covered, only nhd"),
        ({"pool_layout": "vectorized_5d"}, "pool layout vectorized_5d is not covered, only nhd"),
        ({"pool_dtype": torch.float32}, "pool dtype torch.float32 differs from qkv dtype torch.bfloat16"),
    ],
)
def test_no_backend_covers(spec, backend, fields, reason):
    assert reason not in backend.refusals(HOME[backend.name], spec)
    assert reason in backend.refusals(HOME[backend.name], replace(spec, **fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"qkv_dtype": torch.float32, "pool_dtype": torch.float32}, "qkv dtype torch.float32 is not covered"),
        ({"head_dim": 96}, "head_dim 96 is not covered, only 64, 128, 256"),
        ({"rotary_dim": 24}, "rotary_dim 24 is not covered, only multiples of 16"),
        ({"q_fp8_dtype": E4M3FN}, "an fp8 query (torch.float8_e4m3fn) is covered beside a pool of its type only"),
        (
            {"q_fp8_dtype": E4M3FN, "pool_dtype": E4M3FNUZ},
            "an fp8 query (torch.float8_e4m3fn) is covered beside a pool",
        ),
        ({"pool_dtype": E4M3FN, "k_scale": 2.0**-70, "v_scale": 1.0}, "is not covered, only 2^-64 to 2^64"),
    ],
)
def test_what_the_compiled_kernels_refuse(spec, fields, reason):
    covered = replace(spec, head_dim=128, rotary_dim=64)
    assert native_arguments.refusals(covered) == []
    (found,) = native_arguments.refusals(replace(covered, **fields))
    assert reason in found


def test_an_eps_too_small_for_the_refined_root(spec):
    assert any("eps 0.0 is not covered" in reason for reason in hip_backend.refusals(MI300, replace(spec, eps=0.0)))


def test_backends_stay_on_their_machines(spec):
    assert hip_backend.refusals(H200, spec) == hip_backend.refusals(CPU, spec) == ["needs an AMD GPU"]
    assert cuda_backend.refusals(MI300, spec) == ["needs an NVIDIA GPU"]
    assert host_backend.refusals(H200, spec) == ["works on CPU tensors only"]


def test_torch_covers_every_platform(spec):
    for fields in ({}, {"pool_dtype": E4M3FN}, {"qkv_dtype": torch.float32, "pool_dtype": torch.float32}):
        assert all(torch_backend.refusals(one, replace(spec, **fields)) == [] for one in (CPU, H200, MI300))


def test_triton_needs_a_gpu_or_its_interpreter(spec, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert NEEDS_GPU in triton_backend.refusals(CPU, spec)
    assert NEEDS_GPU not in triton_backend.refusals(H200, spec)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert NEEDS_GPU not in triton_backend.refusals(CPU, spec)


def test_missing_triton_is_a_refusal(spec, monkeypatch):
    for name in ("triton", "triton.runtime", "triton.runtime.jit"):
        monkeypatch.setitem(sys.modules, name, None)
    assert triton_backend.refusals(H200, spec) == ["triton is not installed"]


@needs_compiler
def test_cpu_takes_the_host_kernel_and_says_why_not_the_others(spec, tables, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    pools = {f"{name}_pool": torch.zeros(10, 2, 128, dtype=BF16) for name in "kv"}
    wide = replace(tables, q_norm_multipliers=torch.ones(128), k_norm_multipliers=torch.ones(128),
                   cos_sin=torch.ones(6, 64), **pools)  # fmt: skip
    choice = qk_norm_rope.choose(CPU, replace(spec, head_dim=128, rotary_dim=64), wide)
    assert choice.describe().startswith("qk_norm_rope=host (refused: hip: needs an AMD GPU | cuda: needs an NVIDIA GPU")
    assert qk_norm_rope.choose(CPU, spec, tables).backend == "torch"  # heads of 16


def test_refused_layout_raises_before_its_tables_are_checked(spec):
    with pytest.raises(NoBackend, match="torch: pool layout hnd is not covered"):
        qk_norm_rope.choose(CPU, replace(spec, pool_layout="hnd"), None)


@pytest.mark.parametrize(
    ("positions", "slots", "message"),
    [
        (
            (0, 6),
            (1, 2),
            "row 1 asks for position 6, outside the cos/sin table [(]0 to 5[)].*negative slot excuses none",
        ),
        ((-1, 0), (-1, 2), "row 0 asks for position -1"),
        ((0, 6), None, "row 1 asks for position 6"),
        ((0, 0), (1, 10), "row 1 asks for slot 10, outside the pools [(]0 to 9[)]"),
    ],
)
@pytest.mark.parametrize("backend", ["torch", pytest.param("host", marks=needs_compiler)])
def test_rows_outside_are_errors_on_a_cpu_and_write_nothing(backend, positions, slots, message):
    spec = qk_norm_rope.QKNormRopeSpec(2, 1, 64, 16, True, 1e-6, BF16, BF16)
    pools = [torch.zeros(10, 1, 64, dtype=BF16) for _ in range(2)]
    tables = qk_norm_rope.QKNormRopeTables(torch.ones(64), torch.ones(64), torch.ones(6, 16), *pools)
    qkv = torch.full((2, 4 * 64), 3.0, dtype=BF16)
    with pytest.raises(IndexError, match=message):
        qk_norm_rope.choose(CPU, spec, tables, backend).run(
            qkv, torch.tensor(positions), None if slots is None else torch.tensor(slots)
        )
    assert (qkv == 3.0).all() and not any(pool.any() for pool in pools)


SPEC = qk_norm_rope.QKNormRopeSpec(2, 1, 64, 16, True, 1e-6, BF16, E4M3FN, q_fp8_dtype=E4M3FN)


def fp8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8).view(E4M3FN)


def bound(**fields):
    tables = qk_norm_rope.QKNormRopeTables(
        torch.ones(64), torch.ones(64), torch.ones(6, 16), fp8(10, 1, 64), fp8(10, 1, 64)
    )
    image = stand_in_driver.image(native_arguments.SOURCE)
    opened = stand_in_driver.open_driver(driver.HIP)
    return gpu_kernel.bind(SPEC, replace(tables, **fields), image, opened, stand_in_driver.stream)


@needs_compiler
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"k_pool": fp8(10, 68)[:, :64].unflatten(1, (1, 64))}, "pool rows are aligned to 4 bytes, not to 8"),
        ({"cos_sin": torch.ones(6, 18)[:, :16]}, "rows of cos_sin are not aligned to 16 bytes"),
        ({"q_norm_multipliers": torch.ones(65)[1:]}, "q_norm_multipliers is not aligned to 16 bytes"),
        ({"k_norm_multipliers": torch.ones(65)[1:]}, "k_norm_multipliers is not aligned to 16 bytes"),
    ],
)
def test_tables_that_wide_accesses_cannot_reach(fields, reason):
    with pytest.raises(NotCovered) as refusal:
        bound(**fields)
    assert refusal.value.reasons == (reason,)


@needs_compiler
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"qkv": torch.zeros(3, 260, dtype=BF16)[:, :256]}, "qkv: expected tokens at multiples of 16 bytes"),
        ({"qkv": torch.zeros(3, 264, dtype=BF16)[:, 1:257]}, "qkv: expected tokens at multiples of 16 bytes"),
        ({"q_fp8_out": fp8(3, 132)[:, :128].unflatten(1, (2, 64))}, "q_fp8_out: expected tokens at multiples of 8"),
    ],
)
def test_rows_that_wide_accesses_cannot_reach(fields, message):
    rows = {
        "qkv": torch.zeros(3, 256, dtype=BF16),
        "positions": torch.zeros(3, dtype=torch.int64),
        "slots": torch.arange(3),
        "q_fp8_out": fp8(3, 2, 64),
    }
    op = bound()
    op(**rows)
    with pytest.raises(ValueError, match=message):
        op(**{**rows, **fields})


@needs_compiler
def test_launch_geometry():
    """Eight rows of 64 a block: K and V's blocks first, then Q's, on the stream that was current."""
    bound()(torch.zeros(9, 256, dtype=BF16), torch.zeros(9, dtype=torch.int64), None)
    launch = stand_in_driver.last_launch()
    assert launch.kernel == b"qk_norm_rope_64_neox_float32_e4m3fn"
    assert (launch.grid_x, launch.grid_y, launch.block_x) == (2 + 3, 1, 64)
    assert launch.stream == stand_in_driver.STREAM


@pytest.mark.parametrize(
    ("qkv_shape", "q_fp8_shape"), [((2**23 + 1, 256), None), ((2**24, 256), (2**24, 2, 64)), ((4, 256), (4, 2, 2**30))]
)
def test_rows_past_the_offsets_are_refused(qkv_shape, q_fp8_shape):
    """Offsets are 32 bits wide: what would wrap around is refused. These tensors have no memory."""
    tokens = qkv_shape[0]
    qkv, positions = torch.empty(qkv_shape, dtype=BF16, device="meta"), torch.zeros(1).expand(tokens)
    q_fp8 = None if q_fp8_shape is None else torch.empty(q_fp8_shape, dtype=torch.uint8, device="meta")
    tables = qk_norm_rope.QKNormRopeTables(torch.ones(64), torch.ones(64), torch.ones(6, 16))
    arguments = native_arguments.bound_arguments(SPEC, tables)
    with pytest.raises(ValueError, match="below 4 GiB"):
        native_arguments.set_rows(arguments, tables, qkv, positions, None, q_fp8)


def test_arguments_have_the_size_of_the_structure():
    assert ctypes.sizeof(native_arguments.Arguments) == 160
