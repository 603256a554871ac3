"""Stated constants and what follows from them."""

from __future__ import annotations

import pytest

from sglang_dspark.bench import roofline
from sglang_dspark.bench.roofline import MIB, chip_named, floor_us, flush_bytes


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        # Other memory than the chips above: no share is better than a wrong one.
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("AMD Instinct MI300A", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_chips_are_known_by_torchs_name(device, chip):
    found = chip_named(device)
    assert (found.name if found else None) == chip


def test_floor():
    assert floor_us(5.3e6, chip_named("AMD Instinct MI300X")) == pytest.approx(1.0)


@pytest.mark.parametrize("chip", [*roofline.CHIPS, None])
def test_a_flush_is_larger_than_every_cache(chip):
    assert flush_bytes(chip) >= 2 * (chip.last_cache_bytes if chip else 256 * MIB)
    assert flush_bytes(chip) >= 256 * MIB
