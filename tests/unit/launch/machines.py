"""Machines that this one is not, as values."""

from __future__ import annotations

from sglang_dspark import platforms
from sglang_dspark.launch.machine import Machine

MI300X = Machine(platforms.describe("amd", "gfx942"), 8, 206_000_000_000)
MI355X = Machine(platforms.describe("amd", "gfx950"), 8, 309_000_000_000)
ONE_MI300X = Machine(platforms.describe("amd", "gfx942"), 1, 206_000_000_000)
H200 = Machine(platforms.describe("nvidia", "sm_90"), 8, 151_000_000_000)
B200 = Machine(platforms.describe("nvidia", "sm_100"), 4, 192_000_000_000)
CPU = Machine(platforms.describe("cpu", "cpu"), 1, 25_000_000_000)
