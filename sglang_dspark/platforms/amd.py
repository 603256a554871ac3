"""AMD Instinct: the CDNA chips (gfx9xx), whose wavefronts are 64 lanes wide.

Adding a backend: write its module in the op's folder, list it in the op's registry (`ops/<op>/__init__.py`), then put
its name here at the place where `auto` should try it.
"""

from __future__ import annotations

import re

from sglang_dspark.platforms.platform import Platform, UnsupportedPlatform

OFFERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("context_kv", ("hip", "triton", "aiter", "torch")),
    ("qk_norm_rope", ("hip", "triton", "aiter", "torch")),
)

# MI300 reads the "fnuz" fp8 (finite max 240, no negative zero). gfx950 and everything later read the OCP format.
FNUZ_ARCHS = frozenset({"gfx940", "gfx941", "gfx942"})


def describe(arch: str) -> Platform:
    """The platform of an AMD chip, from the name ROCm gives it (feature suffixes such as ``:xnack-`` are dropped)."""
    chip = arch.split(":")[0]
    if re.match(r"gfx1[0-2]", chip):
        raise UnsupportedPlatform(
            f"asked for {chip}; its wavefronts are 32 lanes wide and our kernels are written and tested for 64: "
            "use an Instinct card (gfx9xx, e.g. gfx942 or gfx950), or the CPU with SGLANG_USE_CPU_ENGINE=1"
        )
    if not re.fullmatch(r"gfx9[0-9a-f]{2}", chip):
        raise UnsupportedPlatform(
            f"asked for the AMD architecture {arch!r}; known are the wave64 chips gfx9xx (e.g. gfx942, gfx950): "
            "add it to platforms/amd.py once its wavefront size and fp8 format are known"
        )
    fp8_format = "e4m3fnuz" if chip in FNUZ_ARCHS else "e4m3fn"
    return Platform("amd", chip, device_type="cuda", fp8_format=fp8_format, warp_size=64, offers=OFFERS)
