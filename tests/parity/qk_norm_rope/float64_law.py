"""The law of Q and K once more, in float64 NumPy: independent of the reference, and what checks it."""

from __future__ import annotations

import numpy as np
import torch

from tests.parity.float64_law import rounded

from .cases import Problem


def expected_qk(problem: Problem) -> np.ndarray:
    """Q and K of every token: [T, Hq + Hkv, D] float64. Rotation is a complex product."""
    spec = problem.spec
    significand_bits = {2: 8, 4: 24}[spec.qkv_dtype.itemsize]
    heads = (
        problem.qkv.double().numpy().reshape(len(problem.qkv), spec.num_heads, spec.head_dim)[:, : -spec.num_kv_heads]
    )
    tables = problem.tables
    multipliers = torch.cat(
        (
            tables.q_norm_multipliers.expand(spec.num_q_heads, -1),
            tables.k_norm_multipliers.expand(spec.num_kv_heads, -1),
        )
    )
    with np.errstate(all="ignore"):
        mean_square = np.square(heads).sum(-1, keepdims=True) / spec.head_dim
        x = rounded(heads / np.sqrt(mean_square + spec.eps) * multipliers.double().numpy(), significand_bits)
        half = spec.rotary_dim // 2
        first = np.arange(half) if spec.is_neox else 2 * np.arange(half)
        second = first + (half if spec.is_neox else 1)
        angle = tables.cos_sin.double().numpy()[problem.positions.clamp(0, tables.num_positions - 1).numpy()]
        turn = (angle[:, :half] + 1j * angle[:, half:])[:, None]
        real = x[..., first] * turn.real - x[..., second] * turn.imag
        imaginary = x[..., first] * turn.imag + x[..., second] * turn.real
        x[..., first], x[..., second] = rounded(real, significand_bits), rounded(imaginary, significand_bits)
    return x
