"""The platform table: what each machine is, what it offers, and which machines are refused by name."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv, qk_norm_rope
from sglang_dspark.platforms import UnsupportedPlatform, amd, cpu, nvidia


@pytest.mark.parametrize(
    ("name", "arch", "device_type", "fp8_format", "warp_size", "context_kv_backends"),
    [
        ("amd", "gfx942", "cuda", "e4m3fnuz", 64, ("hip", "triton", "aiter", "torch")),
        ("amd", "gfx940", "cuda", "e4m3fnuz", 64, ("hip", "triton", "aiter", "torch")),
        ("amd", "gfx950", "cuda", "e4m3fn", 64, ("hip", "triton", "aiter", "torch")),
        ("amd", "gfx90a", "cuda", "e4m3fn", 64, ("hip", "triton", "aiter", "torch")),
        ("nvidia", "sm_90", "cuda", "e4m3fn", 32, ("cuda", "triton", "torch")),
        ("nvidia", "sm_100", "cuda", "e4m3fn", 32, ("cuda", "triton", "torch")),
        ("cpu", "cpu", "cpu", "e4m3fn", 1, ("host", "torch")),
    ],
)
def test_describe(name, arch, device_type, fp8_format, warp_size, context_kv_backends):
    """Fault 3. gfx942 alone has fp8 in the fnuz format."""
    platform = platforms.describe(name, arch)
    assert (platform.name, platform.arch, platform.device_type) == (name, arch, device_type)
    assert (platform.fp8_format, platform.warp_size) == (fp8_format, warp_size)
    assert platform.backends("context_kv") == context_kv_backends


def test_amd_feature_suffixes_are_dropped():
    assert platforms.describe("amd", "gfx942:sramecc+:xnack-").arch == "gfx942"


@pytest.mark.parametrize("arch", ["gfx1030", "gfx1100", "gfx1201"])
def test_wave32_chips_are_refused_by_name(arch):
    with pytest.raises(UnsupportedPlatform, match=f"asked for {arch}.*32 lanes.*gfx9"):
        platforms.describe("amd", arch)


@pytest.mark.parametrize(("name", "arch"), [("amd", "gfx8"), ("amd", "sm_90"), ("nvidia", "gfx942"), ("cpu", "x86")])
def test_unknown_architectures_are_refused(name, arch):
    with pytest.raises(UnsupportedPlatform, match=arch):
        platforms.describe(name, arch)


def test_unknown_platform_lists_the_known_ones():
    with pytest.raises(UnsupportedPlatform, match="'tpu'; known are amd, nvidia, cpu"):
        platforms.describe("tpu", "v5")


def test_unknown_op_says_where_to_add_it():
    with pytest.raises(KeyError, match="platforms/cpu.py"):
        platforms.describe("cpu", "cpu").backends("attention")


@pytest.mark.parametrize("vendor", [amd, nvidia, cpu])
def test_every_offered_backend_exists(vendor):
    """A name in an OFFERS table that no op has would only show on that vendor's machines."""
    ops = {op.name: op for op in (context_kv.OP, qk_norm_rope.OP)}
    assert {op_name for op_name, _ in vendor.OFFERS} == set(ops)
    for op_name, names in vendor.OFFERS:
        for name in names:
            assert ops[op_name].backend(name).name == name


def test_current_is_picked_once():
    assert platforms.current() is platforms.current()
    if not torch.cuda.is_available():
        assert platforms.current() == platforms.describe("cpu", "cpu")
