"""NVIDIA GPUs, named by compute capability (sm_90 is an H100 or H200).

Adding a backend: write its module in the op's folder, list it in the op's registry (`ops/<op>/__init__.py`), then put
its name here at the place where `auto` should try it.
"""

from __future__ import annotations

import re

from sglang_dspark.platforms.platform import Platform, UnsupportedPlatform

OFFERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("context_kv", ("cuda", "triton", "torch")),
    ("qk_norm_rope", ("cuda", "triton", "torch")),
)


def describe(arch: str) -> Platform:
    """The platform of an NVIDIA chip, from ``sm_<major><minor>``."""
    if not re.fullmatch(r"sm_[0-9]{2,3}[a-z]?", arch):
        raise UnsupportedPlatform(
            f"asked for the NVIDIA architecture {arch!r}; expected sm_<major><minor>, e.g. sm_90: "
            "take it from torch.cuda.get_device_capability()"
        )
    return Platform("nvidia", arch, device_type="cuda", fp8_format="e4m3fn", warp_size=32, offers=OFFERS)
