"""The CPU: where anyone can run and test the whole of it.

Adding a backend: write its module in the op's folder, list it in the op's registry (`ops/<op>/__init__.py`), then put
its name here at the place where `auto` should try it.
"""

from __future__ import annotations

from sglang_dspark.platforms.platform import Platform, UnsupportedPlatform

OFFERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("context_kv", ("host", "torch")),
    ("qk_norm_rope", ("host", "torch")),
)


def describe(arch: str = "cpu") -> Platform:
    """The platform of a CPU. There is one, whatever the instruction set: torch sees to that."""
    if arch != "cpu":
        raise UnsupportedPlatform(f"asked for the CPU architecture {arch!r}; the only one is 'cpu'")
    return Platform("cpu", "cpu", device_type="cpu", fp8_format="e4m3fn", warp_size=1, offers=OFFERS)
