"""What AITER's functions may differ by from the law, and the comparison that holds a freshly bound one to it.

A signature does not say what a function does: an older build may round elsewhere, read another layout or ignore a flag.
So a backend first works on a few rows of its own, and refuses when the answer is out of its bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The smallest distance between two numbers of a type: what one rounding moves a value that is next to nothing.
SPACING = {torch.bfloat16: 2**-133, torch.float8_e4m3fn: 2**-9, torch.float8_e4m3fnuz: 2**-10}


@dataclass(frozen=True)
class Bound:
    """How far a function may be from the law, per element.

    ``relative``: of the sizes of both rotary partners, added. ``spacings``: the smallest distances between two numbers
    that come on top, where a value is next to nothing. How many elements differ is not bounded: other rounding points
    move a large part of them.
    """

    relative: float
    spacings: int
    reason: str


COPY = Bound(0.0, 0, "a copy")


def outside(
    bound: Bound,
    found: torch.Tensor,  # [..., D]
    expected: torch.Tensor,  # [..., D]
    magnitude: torch.Tensor,  # [..., D] fp64, of the values before any fp8 scale
    scale: float = 1.0,
) -> int:
    """How many elements are out of bounds. A NaN equals a NaN and nothing else."""
    one, other = found.double() * scale, expected.double() * scale
    same = (one == other) | (one.isnan() & other.isnan())
    near = (one - other).abs() <= bound.relative * magnitude + bound.spacings * SPACING[expected.dtype] * scale
    return int((~same & ~near).sum())


def partner_magnitude(
    normalised: torch.Tensor,  # [..., D]
    rotary_dim: int,
    is_neox: bool,
) -> torch.Tensor:
    """The sizes of an element and of its rotary partner, added: [..., D] fp64."""
    size = normalised.double().abs()
    pairs = size[..., :rotary_dim].unflatten(-1, (2, -1) if is_neox else (-1, 2))
    both = pairs.sum(-2 if is_neox else -1, keepdim=True).expand_as(pairs).flatten(-2)
    return torch.cat((both, size[..., rotary_dim:]), dim=-1)
