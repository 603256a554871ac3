"""Vector instructions on float32: ``name: (signature, function)``, in the notation of `vector_integer`.

Arithmetic is IEEE, rounded to nearest even. On the chips v_rcp, v_rsq and v_sqrt are good to one unit in the last
place; here they are correctly rounded, off by the units that `Chip.approximation_ulps` asks for, and flush denormals
whatever MODE says. Only a NaN's payload is not emulated: it is what the host's arithmetic makes.
"""

from __future__ import annotations

import numpy as np

from . import conversions
from .chip import Chip
from .registers import U32, Wave

F32, F64, I32 = np.float32, np.float64, np.int32
SIGN = U32(0x80000000)
SMALLEST_NORMAL = F32(2.0**-126)


def flush(values: np.ndarray) -> np.ndarray:
    """Denormals to zeros of the same sign."""
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(F32(0), values), values)


def fma(a, b, c, power=0):
    """(a * b + c) * 2^power, rounded once.

    The product is exact in float64. The sum is rounded to odd there, so that the rounding to float32 is the only
    one: when it was inexact and came out even, it is moved to the odd neighbour on the other side of the exact value.
    """
    product, addend = a.astype(F64) * b, c.astype(F64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    whole = total.view(np.int64)
    inexact_even = (error != 0) & np.isfinite(total) & np.isfinite(error) & (whole & 1 == 0)
    odd = np.where(inexact_even, whole + np.where((error > 0) == (total > 0), 1, -1), whole).view(F64)
    return np.ldexp(odd, power).astype(F32)


def _units_off(bits: np.ndarray, chip: Chip) -> np.ndarray:
    if not chip.approximation_seed:
        return np.full(bits.shape, chip.approximation_ulps, I32)
    mixed = (bits ^ U32(chip.approximation_seed)) * U32(2654435761)
    return (mixed >> U32(16)).astype(I32) % 3 - 1


def approximate(exact):
    """A function of one instruction that chips only approximate."""

    def evaluate(wave: Wave, values: np.ndarray) -> np.ndarray:
        result = exact(flush(values).astype(F64)).astype(F32)
        moved = (result.view(I32) + _units_off(result.view(U32), wave.chip)).view(F32)
        finite = np.isfinite(result) & (result != 0)
        return flush(np.where(finite, moved, result))

    return evaluate


def smaller(a, b):
    """A number rather than a NaN, and -0 rather than +0."""
    pick_a = (a < b) | np.isnan(b) | ((a == b) & np.signbit(a))
    return np.where(pick_a, a, b)


def larger(a, b):
    pick_a = (a > b) | np.isnan(b) | ((a == b) & np.signbit(b))
    return np.where(pick_a, a, b)


def median(a, b, c):
    """The one in the middle; the smallest when one is a NaN."""
    low, high = smaller(smaller(a, b), c), larger(larger(a, b), c)
    middle = np.where(high == a, larger(b, c), np.where(high == b, larger(a, c), larger(a, b)))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), low, middle)


def exponent(values):
    """The exponent field."""
    return (values.view(U32) >> U32(23) & U32(0xFF)).astype(I32)


def is_denormal(values):
    return (values != 0) & (np.abs(values) < SMALLEST_NORMAL)


def divide_scale(value, denominator, numerator):
    """Scales one of the two so that the division's steps neither overflow nor lose bits; the mask says: undo it.

    The published text scales up the denominator whose inverse is denormal as well as the quotient. That would be an
    infinity; as the chips divide correctly, they are taken to scale it down.
    """
    apart = exponent(numerator) - exponent(denominator)
    inverse = is_denormal((1.0 / denominator.astype(F64)).astype(F32))
    quotient = is_denormal((numerator / denominator.astype(F64)).astype(F32))
    up, down = np.ldexp(value, 64).astype(F32), np.ldexp(value, -64).astype(F32)
    bits = value.view(U32)
    is_denominator, is_numerator = bits == denominator.view(U32), bits == numerator.view(U32)
    zero = (numerator == 0) | (denominator == 0)
    rules = [
        (zero, np.full_like(value, np.nan), False),
        (apart >= 96, np.where(is_denominator, up, value), True),
        (is_denormal(denominator), up, False),
        (inverse & quotient, np.where(is_denominator, down, value), True),
        (inverse, down, False),
        (quotient, np.where(is_numerator, up, value), True),
        (exponent(numerator) <= 23, up, False),
    ]
    conditions = [condition for condition, _, _ in rules]
    undo = np.select(conditions, [np.full(value.shape, flag) for _, _, flag in rules], False)
    return np.select(conditions, [result for _, result, _ in rules], value).astype(F32), undo


def divide_fmas(wave: Wave, a, b, c, undo):
    """fma, and v_div_scale's scaling undone where its mask says so, before the result is rounded."""
    return fma(a, b, c, np.where(undo, np.where(exponent(c) > 127, 64, -64), 0))


def divide_fixup(quotient, denominator, numerator):
    """The quotient, or what IEEE wants for zeros, infinities, NaNs and results out of range.

    The steps before make a NaN of a quotient of two numbers only where it overflows.
    """
    sign = (denominator.view(U32) ^ numerator.view(U32)) & SIGN

    def signed(size):
        return (np.full(quotient.shape, size, F32).view(U32) | sign).view(F32)

    both_zero = (denominator == 0) & (numerator == 0)
    both_infinite = np.isinf(denominator) & np.isinf(numerator)
    rules = [
        (np.isnan(numerator), numerator + F32(0)),
        (np.isnan(denominator), denominator + F32(0)),
        (both_zero | both_infinite, np.full(quotient.shape, 0xFFC00000, U32).view(F32)),
        ((denominator == 0) | np.isinf(numerator), signed(np.inf)),
        (np.isinf(denominator) | (numerator == 0), signed(0.0)),
        (exponent(numerator) - exponent(denominator) < -150, signed(0.0)),
        (np.isnan(quotient), signed(np.inf)),
    ]
    ordinary = ((quotient.view(U32) & ~SIGN) | sign).view(F32)
    return np.select([condition for condition, _ in rules], [result for _, result in rules], ordinary)


def to_integer(values, dtype):
    """Truncated and clamped; NaN gives 0."""
    limits = np.iinfo(dtype)
    return np.clip(np.trunc(np.nan_to_num(values.astype(F64), nan=0.0)), limits.min, limits.max).astype(dtype)


def bf16_pair(a, b):
    """Two float32 to the two halves of a register."""
    return conversions.bf16_bits(a) | conversions.bf16_bits(b) << U32(16)


FLOAT = {
    "v_add_f32": ("f:ff", lambda a, b: a + b),
    "v_sub_f32": ("f:ff", lambda a, b: a - b),
    "v_subrev_f32": ("f:ff", lambda a, b: b - a),
    "v_mul_f32": ("f:ff", lambda a, b: a * b),
    "v_fma_f32": ("f:fff", fma),
    "v_fmac_f32": ("f:ff+", fma),
    "v_fmamk_f32": ("f:fff", fma),  # operands: a, the constant factor, the addend
    "v_fmaak_f32": ("f:fff", fma),  # operands: a, b, the constant addend
    "v_min_f32": ("f:ff", smaller),
    "v_max_f32": ("f:ff", larger),
    "v_min3_f32": ("f:fff", lambda a, b, c: smaller(smaller(a, b), c)),
    "v_max3_f32": ("f:fff", lambda a, b, c: larger(larger(a, b), c)),
    "v_med3_f32": ("f:fff", median),
    "v_ldexp_f32": ("f:fi", lambda a, b: np.ldexp(a, b).astype(F32)),
    "v_floor_f32": ("f:f", np.floor),
    "v_ceil_f32": ("f:f", np.ceil),
    "v_trunc_f32": ("f:f", np.trunc),
    "v_rndne_f32": ("f:f", np.rint),
    "v_div_scale_f32": ("fm:fff", divide_scale),
    "v_div_fixup_f32": ("f:fff", divide_fixup),
    "v_cvt_f32_u32": ("f:u", lambda a: a.astype(F32)),
    "v_cvt_f32_i32": ("f:i", lambda a: a.astype(F32)),
    "v_cvt_u32_f32": ("u:f", lambda a: to_integer(a, U32)),
    "v_cvt_i32_f32": ("i:f", lambda a: to_integer(a, I32)),
    **{f"v_cvt_f32_ubyte{i}": ("f:u", lambda a, i=i: (a >> U32(8 * i) & U32(0xFF)).astype(F32)) for i in range(4)},
}
# These ask the wave for more than their operands.
FLOAT_WITH_WAVE = {
    "v_rcp_f32": ("f:f", approximate(lambda x: 1.0 / x)),
    "v_sqrt_f32": ("f:f", approximate(np.sqrt)),
    "v_rsq_f32": ("f:f", approximate(lambda x: 1.0 / np.sqrt(x))),
    "v_div_fmas_f32": ("f:fffv", divide_fmas),  # v: VCC, which it reads unsaid
}
# Instructions that only gfx950 has.
ONLY_GFX950 = {
    "v_cvt_pk_bf16_f32": ("u:ff", bf16_pair),
}
