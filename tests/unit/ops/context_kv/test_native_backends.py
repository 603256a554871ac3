"""What the compiled backends cover, refuse and bind: host, hip and cuda."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import cuda_backend, gpu_writer, hip_backend, host_backend, native_arguments
from sglang_dspark.ops.dispatch import NoBackend
from sglang_dspark.ops.native import code, driver, toolchain

from .native_support import SPEC, needs_compiler, tables

CPU = platforms.describe("cpu", "cpu")
GFX942, SM_90 = platforms.describe("amd", "gfx942"), platforms.describe("nvidia", "sm_90")
# The platforms as they are, with tensors that a test can make.
GFX942_ON_CPU, SM_90_ON_CPU = replace(GFX942, device_type="cpu"), replace(SM_90, device_type="cpu")
FP8 = torch.float8_e4m3fnuz


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """A machine that never had one: nothing prebuilt, nothing cached."""
    host_backend.library.cache_clear()
    monkeypatch.setenv("SGLANG_DSPARK_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(code, "PREBUILT", tmp_path)
    for tools in (toolchain.HOST, toolchain.AMD, toolchain.NVIDIA):
        monkeypatch.setenv(tools.variable, "no-such-compiler")
    yield
    host_backend.library.cache_clear()


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """As if code objects were there."""
    image = tmp_path / "image"
    image.write_bytes(b"code")
    monkeypatch.setattr(code, "compiled", lambda source, tools, arch: image)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pool_layout": "hnd"}, "pool layout hnd is not covered, only nhd"),
        ({"kv_dtype": torch.float32, "pool_dtype": torch.float32}, "kv dtype torch.float32 is not covered"),
        ({"pool_dtype": torch.float32}, "pool dtype torch.float32 is not covered"),
        ({"head_dim": 96}, "head_dim 96 is not covered, only 64, 128, 256"),
        ({"rotary_dim": 24}, "rotary_dim 24 is not covered, only multiples of 16"),
        (
            {"pool_dtype": FP8, "k_scales": (1.0, 2.0**70), "v_scales": (1.0, 1.0)},
            "k_scales [1.1805916207174113e+21] are not covered, only 2^-64 to 2^64",
        ),
    ],
)
def test_refusals_of_a_spec(compiled, fields, reason):
    spec = replace(SPEC, **fields)
    for backend, platform in ((hip_backend, GFX942), (cuda_backend, SM_90), (host_backend, CPU)):
        assert any(found.startswith(reason) for found in backend.refusals(platform, spec)), backend


@pytest.mark.parametrize("fields", [{}, {"pool_dtype": FP8}, {"slots_per_layer": True}, {"is_neox": False}])
def test_what_is_covered(compiled, fields):
    spec = replace(SPEC, **fields)
    assert hip_backend.refusals(GFX942, spec) == cuda_backend.refusals(SM_90, spec) == []


def test_each_needs_its_own_machine():
    assert hip_backend.refusals(SM_90, SPEC) == ["needs an AMD GPU"]
    assert cuda_backend.refusals(GFX942, SPEC) == ["needs an NVIDIA GPU"]
    assert host_backend.refusals(SM_90, SPEC) == ["works on CPU tensors only"]


def test_eps_below_the_roots_range_is_refused(compiled):
    assert hip_backend.refusals(GFX942, replace(SPEC, eps=0.0)) == ["eps 0.0 is not covered, only 2^-96 and more"]


def test_without_a_compiler_the_next_backend_is_taken(no_compiler):
    choice = context_kv.choose(CPU, SPEC, tables())
    assert choice.backend == "torch"
    assert choice.refused["host"] == ("no host C++ compiler: tried no-such-compiler (install g++, or set CXX)",)
    assert "no AMD GPU compiler" in hip_backend.refusals(GFX942, SPEC)[0]
    assert "no CUDA compiler" in cuda_backend.refusals(SM_90, SPEC)[0]


def test_a_backend_that_was_asked_for_raises(no_compiler):
    with pytest.raises(NoBackend, match="host: no host C[+][+] compiler"):
        context_kv.choose(CPU, SPEC, tables(), "host")


@needs_compiler
def test_cpu_takes_host():
    assert context_kv.choose(CPU, SPEC, tables()).backend == "host"


@pytest.mark.parametrize(
    ("platform", "name", "library"), [(GFX942_ON_CPU, "hip", "libamdhip64"), (SM_90_ON_CPU, "cuda", "libcuda")]
)
def test_no_driver_is_a_refusal(compiled, monkeypatch, platform, name, library):
    """Found only when the kernel is bound; `auto` goes on to the next backend all the same."""

    def no_driver(api):
        raise driver.DriverError(f"no driver library: tried {api.libraries[0]}")

    monkeypatch.setattr(driver, "open_driver", no_driver)
    choice = context_kv.choose(platform, SPEC, tables(), "auto")
    assert choice.backend == "torch"
    assert library in choice.refused[name][0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"k_pools": tables(row_elements=132).k_pools}, "pool rows are aligned to 8 bytes, not to 16"),
        ({"cos_sin": torch.ones(6, 66)[:, :64]}, "rows of cos_sin are not aligned to 16 bytes"),
        ({"norm_multipliers": torch.ones(2, 129)[:, 1:]}, "rows of norm_multipliers are not aligned to 16 bytes"),
    ],
)
def test_rows_that_wide_accesses_cannot_reach_are_refused(fields, reason):
    assert gpu_writer.alignment_refusals(SPEC, tables()) == []
    assert gpu_writer.alignment_refusals(SPEC, replace(tables(), **fields)) == [reason]


def test_fp8_rows_are_reached_by_half_as_wide_accesses():
    pools = tuple(torch.zeros(10, 136, dtype=torch.uint8).view(FP8)[:, :128].unflatten(1, (1, 128)) for _ in range(2))
    given = replace(tables(), k_pools=pools, v_pools=pools)
    assert gpu_writer.alignment_refusals(replace(SPEC, pool_dtype=FP8), given) == []


def test_kernel_names():
    spec = replace(SPEC, is_neox=False, cos_sin_dtype=torch.bfloat16, pool_dtype=FP8, head_dim=64)
    assert native_arguments.kernel_name(spec) == "context_kv_64_interleaved_bf16_e4m3fnuz"
    assert native_arguments.kernel_name(SPEC) == "context_kv_128_neox_float32_bf16"


def test_structures_have_the_header_s_layout():
    """The header asserts the same sizes; the offsets are where the kernels look."""
    arguments = native_arguments.Arguments
    assert ctypes.sizeof(arguments) == 112 and ctypes.sizeof(native_arguments.Layer) == 40
    assert (arguments.kv.offset, arguments.last_row.offset, arguments.kv_token_bytes.offset) == (24, 32, 56)
    assert (arguments.multipliers.offset, arguments.rotary_lanes.offset, arguments.eps.offset) == (64, 96, 108)


@pytest.mark.parametrize("divisor", [1, 2, 3, 5, 7, 8, 96, 4097, 65535])
def test_quotients(divisor):
    """The multiplication that the kernels divide by, up to its limit and past it."""
    magic, limit = native_arguments.magic(divisor), 2**32 // divisor
    near = [
        number
        for multiple in (1, 2, 100, limit // divisor)
        for number in range(multiple * divisor - 2, multiple * divisor + 2)
    ]
    for number in [0, 1, limit - 1, *(number for number in near if 0 <= number < limit)]:
        assert (number + 1) * magic >> 32 == number // divisor, number


def test_too_many_rows_raise():
    arguments, one = native_arguments.Arguments(), torch.ones(1, dtype=torch.int32)
    vector = torch.zeros(1, dtype=torch.int64).expand(70000)
    kv = torch.zeros(1, 1, 2, 1, 128, dtype=torch.bfloat16).expand(70000, -1, -1, -1, -1)
    with pytest.raises(ValueError, match="T [*] W up to 2.32, found T = 70000 .* W = 70000: write it in parts"):
        native_arguments.set_rows(arguments, kv, vector, vector, one, one)
    native_arguments.set_rows(arguments, kv, vector, vector, None, one)
