"""The number formats of `hip/numbers.h` against their definitions, compiled for the host."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
import torch

from sglang_dspark import platforms
from sglang_dspark.ops import context_kv
from sglang_dspark.ops.context_kv import ContextKVSpec, ContextKVTables, reference
from sglang_dspark.ops.native import code, toolchain

from ..context_kv.native_support import needs_compiler

CPU = platforms.describe("cpu", "cpu")
E4M3FN, E4M3FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


@needs_compiler
def test_inverse_root_is_exact_from_every_guess(tmp_path):
    """Fewer Newton steps, or an even factor in the last one, are wrong for a few dozen of these 150 million."""
    source, program = Path(__file__).with_name("check_inverse_root.cpp"), tmp_path / "check"
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-I", str(code.SOURCES)]
    subprocess.run([toolchain.HOST.compiler(), *flags, str(source), "-o", str(program)], check=True)
    run = subprocess.run([str(program)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert run.stdout.startswith("0 of 153"), run.stdout


def stored_by_host(values: torch.Tensor, dtype: torch.dtype, scales: tuple[float, ...]) -> torch.Tensor:
    """The bytes that V's path stores for [n] bf16 values with each scale: [scales, n]. A layer has a scale."""
    layers, tokens = len(scales), values.shape[0] // 128
    spec = ContextKVSpec(layers, 1, 128, 64, True, 1e-6, torch.bfloat16, dtype, k_scales=scales, v_scales=scales)
    pools = [torch.zeros(tokens, 1, 128, dtype=torch.uint8).view(dtype) for _ in range(2 * layers)]
    tables = ContextKVTables(tuple(pools[0::2]), tuple(pools[1::2]), torch.ones(layers, 128), torch.ones(1, 64))
    kv = torch.zeros(tokens, layers, 2, 1, 128, dtype=torch.bfloat16)
    kv[:, :, 1] = values.view(tokens, 1, 1, 128)
    run = context_kv.choose(CPU, spec, tables, "host").run
    run(kv, torch.zeros(tokens, dtype=torch.int64), torch.arange(tokens))
    return torch.stack([pool.view(torch.uint8).flatten() for pool in pools[1::2]])


def scales() -> tuple[float, ...]:
    """Plain ones, the ends of the range, where quotients lie closest to ties of float32, and random ones."""
    choose = random.Random(0)
    plain = [1.0, 0.5, 3.0, 0.1, 1 / 448, 1 / 240, 2.0**-64, 2.0**64]
    # A tie of fp8 has few bits, so x / scale is nearly a tie of both formats where the scale is nearly as short.
    near = [(eighths * 2**20 + units) / 2**23 for eighths in range(8, 17) for units in range(-8, 9)]
    return tuple(plain + near + [choose.uniform(1, 2) * 2.0 ** choose.randint(-20, 20) for _ in range(40)])


@needs_compiler
@pytest.mark.parametrize("dtype", [E4M3FN, E4M3FNUZ])
def test_every_bf16_value_divided_and_stored(dtype):
    """The scale is applied by two products: it must round as the law's division does, for every bf16 value there is."""
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for scale, found in zip(scales(), stored_by_host(values, dtype, scales()), strict=True):
        expected = reference.to_pool(values[None], dtype, scale).view(torch.uint8)[0]
        different = (found != expected).nonzero()[:, 0].tolist()
        assert not different, f"scale {scale!r}: {[values[at].item() for at in different[:4]]}"
