"""How far a backend may be from the law, and why.

V and every byte that is not written are compared bit for bit. K may differ because the sum over D has no fixed order:
the mean square is then off by some units of float32, and now and then a rounding falls on the other side. In an fp8
pool the values are compared as stored, times the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_dspark.ops.context_kv import reference

from .cases import Problem


@dataclass(frozen=True)
class Bound:
    """``relative``: of the magnitude of the two rotary partners; ``share``: of the elements may differ at all."""

    relative: float
    share: float
    reason: str


K_BOUNDS = {
    torch.bfloat16: Bound(
        2**-6,
        1e-3,
        "one unit (at most 2^-7) where the norm's rounding flips, one more where the rotation's does; a flip needs a "
        "float32 value within a few units of a tie, about 1 in 10,000. A rounding point left out moves half of them",
    ),
    torch.float32: Bound(
        2**-19,
        1.0,
        "nothing is rounded back, so every element shows the order of the sum: at most D/2 units of 2^-24 from a sum "
        "of D terms, and eight more for the other operations: 136 * 2^-24 at D = 256, rounded up",
    ),
}
FP8_BOUND = Bound(
    2**-3,
    1e-3,
    "where bf16 flips, fp8 is nearly always the same; if not, it is the next number, at most 2^-3 away",
)
# The smallest distance between two numbers of a type: what one flip is worth when the value itself is next to nothing.
SPACING = {torch.bfloat16: 2**-133, torch.float32: 2**-149, torch.float8_e4m3fn: 2**-9, torch.float8_e4m3fnuz: 2**-10}


def magnitude(problem: Problem) -> torch.Tensor:
    """The sizes of a K element and of its rotary partner, added: [T, L, H, D] float64."""
    spec, multipliers = problem.spec, problem.tables.norm_multipliers
    layers = [reference.normalise(problem.kv[:, i, 0], multipliers[i], spec.eps) for i in range(spec.num_layers)]
    size = torch.stack(layers, dim=1).double().abs()
    pairs = size[..., : spec.rotary_dim].unflatten(-1, (2, -1) if spec.is_neox else (-1, 2))
    axis = -2 if spec.is_neox else -1
    both = pairs.sum(axis, keepdim=True).expand_as(pairs).flatten(-2)
    return torch.cat((both, size[..., spec.rotary_dim :]), dim=-1)


def check_k(
    problem: Problem, found: torch.Tensor, expected: torch.Tensor, rows: torch.Tensor, layers: torch.Tensor
) -> None:
    """Fail when K is out of bounds. found, expected: [n, H, D]; rows and layers: [n], where each comes from."""
    spec = problem.spec
    bound = FP8_BOUND if spec.pool_dtype.itemsize == 1 else K_BOUNDS[spec.kv_dtype]
    scales = torch.tensor(spec.k_scales or (1.0,) * spec.num_layers, dtype=torch.float64)[layers, None, None]
    found, expected = found.double() * scales, expected.double() * scales
    same = (found == expected) | (found.isnan() & expected.isnan())
    allowed = bound.relative * magnitude(problem)[rows, layers] + SPACING[spec.pool_dtype] * scales
    outside = ~same & ~((found - expected).abs() <= allowed)
    assert not outside.any(), f"{int(outside.sum())} K elements out of bounds, first at {outside.nonzero()[0].tolist()}"
    check_share(found, expected, same, bound)


def check_share(found: torch.Tensor, expected: torch.Tensor, same: torch.Tensor, bound: Bound) -> None:
    """Fail when more elements differ than may. found, expected: [..., D] float64; same: [..., D] bool.

    Two flips may be in the smallest case. In bf16 one that shows at one place of D counts once: numbers of few bits,
    such as those below the normal range, meet a multiplier again and again, doubled and negated, as far from a tie each
    time. Not so in fp8, whose eight mantissas would make one flip of everything, nor where a value was lost to zero.
    """
    differing = ~same
    flips = int(differing.sum())
    if bound is K_BOUNDS[torch.bfloat16] and flips:
        pairs = torch.stack((found[differing], expected[differing]), dim=1)
        lost = (pairs == 0).any(1)
        places = differing.nonzero()[~lost, -1:]
        kept = torch.cat((places, torch.frexp(pairs[~lost]).mantissa.abs()), dim=1)
        flips = int(lost.sum()) + len(set(map(tuple, kept.tolist())))
    limit = bound.share * same.numel()
    assert flips <= 2 or int(differing.sum()) <= limit, (
        f"{int(differing.sum())} of {same.numel()} elements differ, in {flips} ways; at most {limit:.0f} may, or two "
        f"ways: {bound.reason}"
    )
