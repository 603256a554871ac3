"""What the vendors state about their chips. Stated, not measured: a share of these is a share of a data sheet.

Peak memory bandwidth: AMD's data sheets of the Instinct MI300X (5.3 TB/s), MI325X (6.0) and MI355X (8.0), NVIDIA's of
the H100 SXM5 (3.35) and the H200 SXM (4.8). The size of the last cache before memory: AMD's Infinity Cache, 256 MiB of
each ("AMD GPU specifications" in ROCm's documentation, rocm.docs.amd.com/en/latest/reference/gpu-specs.html), and the
L2 of NVIDIA's Hopper, 50 MB ("Hopper Tuning Guide", docs.nvidia.com/cuda/hopper-tuning-guide). Looked up in 2026-11,
the bandwidths in pages that repeat the data sheets (for MI300X and MI325X Vultr's, after AMD's product pages).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """One chip. ``arch`` is what its code is compiled for; ``marks`` are what torch's name of it holds, all of them."""

    name: str
    arch: str
    marks: tuple[str, ...]
    stated_bytes_per_s: float
    last_cache_bytes: int


MIB = 2**20
CHIPS = (
    Chip("MI300X", "gfx942", ("MI300X",), 5.3e12, 256 * MIB),
    Chip("MI325X", "gfx942", ("MI325X",), 6.0e12, 256 * MIB),
    Chip("MI355X", "gfx950", ("MI355X",), 8.0e12, 256 * MIB),
    # The PCIe and NVL cards have other memory and are not in this list.
    Chip("H100", "sm_90", ("H100", "HBM3"), 3.35e12, 50 * MIB),
    Chip("H200", "sm_90", ("H200",), 4.8e12, 50 * MIB),
)
# Of a chip that is not listed: the largest above.
UNKNOWN_CACHE_BYTES = max(chip.last_cache_bytes for chip in CHIPS)


def chip_named(device_name: str) -> Chip | None:
    """The chip of a device by torch's name for it, None when it is not listed."""
    return next((chip for chip in CHIPS if all(mark in device_name for mark in chip.marks)), None)


def floor_us(moved_bytes: float, chip: Chip) -> float:
    """The time that moving the bytes takes at the stated peak."""
    return moved_bytes / chip.stated_bytes_per_s * 1e6


def flush_bytes(chip: Chip | None) -> int:
    """How much to write so that nothing of the inputs is left in a cache.

    At least 256 MiB: while the device writes that, the host queues the timed call, so that its start is not waited for.
    """
    return max(256 * MIB, 2 * (chip.last_cache_bytes if chip else UNKNOWN_CACHE_BYTES))
