"""What a run may differ in from the law, and in nothing else.

Q and K in place have the bound of the context writer's K (`tests/parity/bounds.py`: the sum over D has no fixed order).
Everything else is held bit for bit: to the executor's own Q and K where it follows from them (what the pools and the
fp8 query hold), and to the law where it does not (V, every gap, every slot that is not stored). NaNs of 8 bits count
as one, whatever their sign.
"""

from __future__ import annotations

import torch

from sglang_dspark.ops.context_kv import reference as context_law
from sglang_dspark.ops.qk_norm_rope.rows import heads_of
from tests.parity.bounds import K_BOUNDS, SPACING, check_share

from .cases import Problem


def magnitude(given: Problem) -> torch.Tensor:
    """The sizes of an element of Q or K and of its rotary partner, added: [T, Hq + Hkv, D] float64."""
    spec, tables = given.spec, given.tables
    q, k, _ = heads_of(spec, given.qkv)
    parts = ((q, tables.q_norm_multipliers), (k, tables.k_norm_multipliers))
    size = torch.cat([context_law.normalise(x, multiplier, spec.eps) for x, multiplier in parts], dim=1).double().abs()
    pairs = size[..., : spec.rotary_dim].unflatten(-1, (2, -1) if spec.is_neox else (-1, 2))
    both = pairs.sum(-2 if spec.is_neox else -1, keepdim=True).expand_as(pairs).flatten(-2)
    return torch.cat((both, size[..., spec.rotary_dim :]), dim=-1)


def check_qk(
    given: Problem,  # before the run
    found: torch.Tensor,  # [T, Hq + Hkv, D]
    expected: torch.Tensor,  # [T, Hq + Hkv, D]
) -> None:
    """Fail when Q or K is out of bounds."""
    bound = K_BOUNDS[given.spec.qkv_dtype]
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    allowed = bound.relative * magnitude(given) + SPACING[given.spec.qkv_dtype]
    outside = ~same & ~((found - expected).abs() <= allowed)
    assert not outside.any(), f"{int(outside.sum())} elements out of bounds, first at {outside.nonzero()[0].tolist()}"
    check_share(found, expected, same, bound)


def check_rest(given: Problem, storages: dict[str, torch.Tensor]) -> None:
    """Everything but Q and K in place, byte for byte. ``given`` is the problem before the run, and is used up."""
    spec, tables, width = given.spec, given.tables, given.qkv.shape[1]
    q, k, v = heads_of(spec, storages["qkv"][:, :width])
    expected = {name: storage.clone() for name, storage in given.storages.items()}
    # Q and K stand at the front of a token: take them as found, and compare V and the gap.
    rotated_width = width - spec.num_kv_heads * spec.head_dim
    expected["qkv"][:, :rotated_width] = storages["qkv"][:, :rotated_width]
    if given.slots is not None:
        stored = (given.slots >= 0) & (given.slots < tables.num_slots)
        places, row = given.slots[stored], spec.num_kv_heads * spec.head_dim
        for name, values, scale in zip(("k", "v"), (k, v), spec.pool_scales, strict=True):
            rows = context_law.to_pool(values[stored], spec.pool_dtype, scale).flatten(1)
            as_bytes(expected[name][:, :row])[places] = as_bytes(rows)
    if spec.q_fp8_dtype is not None:
        rows = context_law.to_pool(q, spec.q_fp8_dtype, spec.q_scale or 1.0).flatten(1)
        as_bytes(expected["q_fp8"][:, : rows.shape[1]]).copy_(as_bytes(rows))
    for name, storage in storages.items():
        assert same_bytes(storage, expected[name]), f"{name}: a byte that follows from Q, K and V, or stays, differs"


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8: [n, bytes]."""
    return rows.view(torch.uint8)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal bit for bit; an 8-bit NaN equals an 8-bit NaN."""
    same = as_bytes(one) == as_bytes(other)
    if one.dtype.itemsize == 1:
        same |= one.float().isnan() & other.float().isnan()
    return bool(same.all())
