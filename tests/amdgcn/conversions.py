"""Small number formats: float32 to bf16 and to fp8 e4m3 in both kinds, and back. All round to nearest even."""

from __future__ import annotations

import numpy as np

U32 = np.uint32
FP8_BIAS = {True: 8, False: 7}  # e4m3fnuz, e4m3fn


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """float32 to the 16 bits of a bf16. A NaN stays one, quiet."""
    bits = values.view(U32)
    rounded = (bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))) >> U32(16)
    return np.where(np.isnan(values), (bits >> U32(16)) | U32(0x40), rounded)


def fp8_bits(values: np.ndarray, is_fnuz: bool, negative_zero: int) -> np.ndarray:
    """float32 to the byte of an e4m3 (in a uint32), the way v_cvt_pk_fp8_f32 does while MODE.FP16_OVFL is 0.

    Overflow is not clamped: it gives NaN, as an infinity does. NaN is 0x80 in e4m3fnuz and 0x7f with a sign in e4m3fn.
    """
    sign = (values.view(U32) >> U32(24)) & U32(0x80)
    size = np.abs(values).astype(np.float64)
    lowest = 1 - FP8_BIAS[is_fnuz]  # the smallest normal exponent
    exponent = np.maximum(np.frexp(np.where(np.isfinite(size), size, 1.0))[1] - 1, lowest)
    exponent = np.where(size == 0, lowest, exponent)
    # Counted in steps of 2^(exponent - 3), exactly; a carry into the next exponent carries in the code as well.
    steps = np.rint(np.where(np.isfinite(size), size, 0.0) / np.exp2(exponent - 3.0))
    code = ((exponent - lowest) * 8 + steps).astype(U32)
    largest = 0x7F if is_fnuz else 0x7E
    bad = ~np.isfinite(size) | (code > largest)
    if is_fnuz:
        result = np.where((code == 0) & (sign != 0), U32(negative_zero), sign | code)
        return np.where(bad, U32(0x80), result)
    return np.where(bad, sign | U32(0x7F), sign | code)


def fp8_values(codes: np.ndarray, is_fnuz: bool) -> np.ndarray:
    """The byte of an e4m3 (in a uint32) to float32."""
    codes = codes & U32(0xFF)
    exponent, fraction = ((codes >> U32(3)) & U32(15)).astype(np.int32), (codes & U32(7)).astype(np.float32)
    bias = FP8_BIAS[is_fnuz]
    size = np.where(exponent == 0, np.ldexp(fraction, -2 - bias), np.ldexp(fraction + 8, exponent - bias - 3))
    value = np.where(codes & U32(0x80), -size, size)
    nan = codes == 0x80 if is_fnuz else (codes & U32(0x7F)) == 0x7F
    return np.where(nan, np.float32(np.nan), value).astype(np.float32)
