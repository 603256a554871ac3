"""SDWA: operands that are one byte or one half of a register, and results that go to one."""

from __future__ import annotations

import numpy as np

from .registers import U32, UnknownInstruction

PLACES = {**{f"BYTE_{i}": (8 * i, 8) for i in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32)}


def select(values: np.ndarray, place: str, sign_extend: bool) -> np.ndarray:
    """The selected part of each lane, zero- or sign-extended."""
    low, width = PLACES[place]
    left = values << U32(32 - low - width)
    if sign_extend:
        return (left.view(np.int32) >> np.int32(32 - width)).view(U32)
    return left >> U32(32 - width)


def merge(old: np.ndarray, result: np.ndarray, place: str, unused: str) -> np.ndarray:
    """A result put into its part of the destination; the rest is zero, the old value or the sign."""
    low, width = PLACES[place]
    kept = U32((1 << width) - 1)
    part = (result & kept) << U32(low)
    if unused == "UNUSED_PAD":
        return part
    if unused == "UNUSED_PRESERVE":
        return (old & ~(kept << U32(low))) | part
    if unused == "UNUSED_SEXT":
        return select(result, "BYTE_0" if width == 8 else "WORD_0" if width == 16 else "DWORD", True) << U32(low)
    raise UnknownInstruction(f"SDWA dst_unused {unused}")
