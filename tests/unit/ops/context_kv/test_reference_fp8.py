"""The fp8 step of the law, against the formats' own definition: every value of each format, and every midpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_dspark.ops.context_kv import ContextKVTables, reference

E4M3FN, E4M3FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz


def finite_values(dtype: torch.dtype) -> list[float]:
    """The non-negative finite values in order of their bytes: 4 exponent bits, 3 fraction bits."""
    bias, largest = (7, 448.0) if dtype == E4M3FN else (8, 240.0)
    values = []
    for code in range(128):
        exponent, fraction = code >> 3, code & 7
        value = fraction / 8 * 2.0 ** (1 - bias) if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - bias)
        if value <= largest:
            values.append(value)
    return values


def stored(values: list[float], dtype: torch.dtype, scale: float = 1.0) -> list[int]:
    return reference.to_pool(torch.tensor([values]), dtype, scale).view(torch.uint8)[0].tolist()


@pytest.mark.parametrize("dtype", [E4M3FN, E4M3FNUZ])
def test_every_value_is_its_own_byte(dtype):
    values = finite_values(dtype)
    assert len(values) == (127 if dtype == E4M3FN else 128)
    assert stored(values, dtype) == list(range(len(values)))
    assert stored([-value for value in values[1:]], dtype) == [0x80 + code for code in range(1, len(values))]


@pytest.mark.parametrize("dtype", [E4M3FN, E4M3FNUZ])
def test_midpoints_go_to_even(dtype):
    values = finite_values(dtype)
    midpoints = [(low + high) / 2 for low, high in zip(values[:-1], values[1:], strict=True)]
    assert stored(midpoints, dtype) == [code + code % 2 for code in range(len(midpoints))]


@pytest.mark.parametrize(("dtype", "largest"), [(E4M3FN, 0x7E), (E4M3FNUZ, 0x7F)])
def test_clamps_to_the_largest(dtype, largest):
    assert stored([1e6, float("inf"), -1e6], dtype) == [largest, largest, 0x80 + largest]


def test_fnuz_has_no_negative_zero():
    """0x80 is its NaN: a small negative number must not become one, and a NaN must stay one."""
    assert stored([-0.0, -1e-9, float("nan")], E4M3FNUZ) == [0, 0, 0x80]
    assert stored([-0.0, -1e-9, float("nan")], E4M3FN) == [0x80, 0x80, 0x7F]


def test_divides_by_the_scale():
    assert stored([3.0, -5.0], E4M3FN, scale=2.0) == stored([1.5, -2.5], E4M3FN)


def test_each_layer_and_half_has_its_scale(spec):
    spec = replace(spec, pool_dtype=E4M3FN, k_scales=(1.0, 2.0), v_scales=(4.0, 8.0))
    pools = [tuple(torch.zeros(3, 2, 16, dtype=torch.uint8).view(E4M3FN) for _ in range(2)) for _ in range(2)]
    # Position 0 does not rotate, and the mean square of a row of ones is 1.
    cos_sin = torch.tensor([[1.0] * 4 + [0.0] * 4])
    tables = ContextKVTables(pools[0], pools[1], torch.ones(2, 16), cos_sin)
    kv = torch.ones(1, 2, 2, 2, 16, dtype=torch.bfloat16)
    reference.write(spec, tables, kv, torch.tensor([0]), torch.tensor([1]))
    found = [pool[1].float().unique().tolist() for half in pools for pool in half]
    assert found == [[1.0], [0.5], [0.25], [0.125]]
