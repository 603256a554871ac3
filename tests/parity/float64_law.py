"""The law once more, in float64 NumPy: independent of the reference, and what checks it.

Rotation is a complex product and rounding is done on mantissa and exponent, so that nothing is shared with torch's
casts or with the reference's formulas.
"""

from __future__ import annotations

import numpy as np

from .cases import Problem


def expected_k(problem: Problem) -> np.ndarray:
    """The K of every row, skipped or not (positions are clamped): [T, L, H, D] float64."""
    spec = problem.spec
    significand_bits = {2: 8, 4: 24}[spec.kv_dtype.itemsize]
    k = problem.kv[:, :, 0].double().numpy()
    with np.errstate(all="ignore"):
        mean_square = np.square(k).sum(-1, keepdims=True) / spec.head_dim
        k = k / np.sqrt(mean_square + spec.eps) * problem.tables.norm_multipliers.double().numpy()[None, :, None]
        k = rounded(k, significand_bits)
        positions = problem.positions.clamp(0, problem.tables.num_positions - 1).numpy()
        half = spec.rotary_dim // 2
        first = np.arange(half) if spec.is_neox else 2 * np.arange(half)
        second = first + (half if spec.is_neox else 1)
        angle = problem.tables.cos_sin.double().numpy()[positions]
        turn = (angle[:, :half] + 1j * angle[:, half:])[:, None, None]
        real = k[..., first] * turn.real - k[..., second] * turn.imag
        imaginary = k[..., first] * turn.imag + k[..., second] * turn.real
        k[..., first], k[..., second] = rounded(real, significand_bits), rounded(imaginary, significand_bits)
    return k


def rounded(values: np.ndarray, significand_bits: int) -> np.ndarray:
    """To the nearest number with that many significand bits and float32's exponents, ties to even."""
    exponent = np.frexp(values)[1]
    # Below the normal range the spacing stops shrinking.
    spacing = np.maximum(exponent - significand_bits, -125 - significand_bits)
    return np.ldexp(np.rint(np.ldexp(values, -spacing)), spacing)
