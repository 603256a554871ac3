"""The query block's op through a Triton function of AITER, AMD's own library: one launch and two copies a layer.

The function gives Q and K as new tensors where the law writes in place, so both are copied back. It skips negative
slots and slots beyond the pools, and reads cos and sin unchecked, so positions are clamped first. It converts to fp8
without clamping, so fp8 pools are refused, and an fp8 query it does not know.

Read in AITER's sources, commit e4048607a5; untested on a device. A trial while binding holds it to `BOUND`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.aiter.signatures import Call, Unusable, Wanted
from sglang_dspark.ops.aiter.trial import COPY, Bound, outside, partner_magnitude
from sglang_dspark.ops.aiter.weights import gemma_weights
from sglang_dspark.ops.context_kv.reference import normalise
from sglang_dspark.ops.dispatch import Backend, NotCovered
from sglang_dspark.ops.qk_norm_rope import reference
from sglang_dspark.ops.qk_norm_rope.rows import check_rows, heads_of
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform

FUSED = Wanted(
    "aiter.ops.triton.rope.fused_qkv_split_qk_norm_rope_cache",
    "fused_qkv_split_qk_norm_rope_cache",
    ("qkv", "q_weight", "k_weight", "cos", "sin", "positions", "key_cache", "value_cache", "slot_mapping", "qh", "kvh",
     "head_dim", "is_neox", "reuse_freqs_front_part", "eps", "kv_cache_layout"),
)  # fmt: skip

BOUND = Bound(
    3 * 2**-7,
    3,
    "rotates with the partner as it was before the norm's rounding: half a unit of bf16 (2^-8) beside a flip at each "
    "of both roundings (2^-7)",
)


@dataclass(frozen=True, eq=False)
class AiterQKNormRope:
    """The op bound to its tables."""

    spec: QKNormRopeSpec
    tables: QKNormRopeTables
    fused: Call
    constants: dict[str, Any]

    def refresh(self) -> None:
        """Take over the norms' new multipliers."""
        for name, multipliers in _multipliers(self.tables).items():
            self.constants[name].copy_(gemma_weights(multipliers, torch.float32))

    def __call__(
        self,
        qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor | None,  # [T] int64
        q_fp8_out: torch.Tensor | None = None,  # [T, Hq, D]: refused
    ) -> None:
        """Norm and rotate Q and K in place, and store K and V. Nothing waits for the device."""
        check_rows(self.spec, self.tables, qkv, positions, slots, q_fp8_out)
        if qkv.shape[0] == 0:
            return
        rotated_q, rotated_k, _ = self.fused(
            qkv=qkv,
            positions=positions.clamp(0, self.tables.num_positions - 1),
            slot_mapping=torch.full_like(positions, -1) if slots is None else slots,
            **self.constants,
        )
        q, k, _ = heads_of(self.spec, qkv)
        q.copy_(rotated_q)
        k.copy_(rotated_k)


def refusals(platform: Platform, spec: QKNormRopeSpec) -> list[str]:
    """Why this backend does not cover the case: AITER is imported only when nothing else stands against it."""
    if platform.name != "amd":
        return ["needs an AMD GPU"]
    if reasons := _spec_refusals(spec):
        return reasons
    try:
        signatures.load("aiter")
        signatures.find(FUSED)
    except Unusable as unusable:
        return list(unusable.reasons)
    return []


def build(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> AiterQKNormRope:
    """Bind the op to its tables; raises `NotCovered` when its trial fails."""
    if not tables.pools:
        raise NotCovered(["no pools: the function cannot do without"])
    fused = signatures.find(FUSED)
    _try(spec, tables, fused)
    return _bind(spec, tables, fused)


def _bind(spec: QKNormRopeSpec, tables: QKNormRopeTables, fused: Call) -> AiterQKNormRope:
    cos, sin = tables.cos_sin.chunk(2, dim=1)
    k_pool, v_pool = tables.pools
    constants = {
        **{name: gemma_weights(multipliers, torch.float32) for name, multipliers in _multipliers(tables).items()},
        "cos": cos,
        "sin": sin,
        "key_cache": k_pool[:, None],  # pages of one slot
        "value_cache": v_pool[:, None],
        "qh": spec.num_q_heads,
        "kvh": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "is_neox": spec.is_neox,
        "reuse_freqs_front_part": True,  # cos and sin are R/2 wide
        "eps": spec.eps,
        "kv_cache_layout": "NHD",
    }
    return AiterQKNormRope(spec, tables, fused, constants)


def _multipliers(tables: QKNormRopeTables) -> dict[str, torch.Tensor]:  # [D] fp32 each
    """By the names of the arguments that take their weights."""
    return {"q_weight": tables.q_norm_multipliers, "k_weight": tables.k_norm_multipliers}


def _try(spec: QKNormRopeSpec, tables: QKNormRopeTables, fused: Call) -> None:
    """Run four tokens, one without a slot, on pools of our own; raises `NotCovered` when the law says otherwise.

    It also has Triton compile the function: now, not under graph capture.
    """
    device, shape = tables.cos_sin.device, (8, spec.num_kv_heads, spec.head_dim)
    own = replace(
        tables, **{name: torch.zeros(shape, dtype=spec.pool_dtype, device=device) for name in ("k_pool", "v_pool")}
    )
    law = QKNormRopeTables(
        tables.q_norm_multipliers.cpu(),
        tables.k_norm_multipliers.cpu(),
        tables.cos_sin[:4].cpu(),
        torch.zeros(shape, dtype=spec.pool_dtype),
        torch.zeros(shape, dtype=spec.pool_dtype),
    )
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(4, spec.num_heads * spec.head_dim, generator=generator).to(spec.qkv_dtype)
    positions = torch.tensor([3, 1, 2, 0]).clamp(max=tables.num_positions - 1)
    slots = torch.tensor([5, -1, 2, 0])
    expected, qkv = given.clone(), given.to(device, copy=True)
    reference.run(spec, law, expected, positions, slots)
    try:
        _bind(spec, own, fused)(qkv, positions.to(device), slots.to(device))
        found, found_k_pool, found_v_pool = (x.cpu() for x in (qkv, *own.pools))
    except NotCovered:
        raise
    except Exception as error:  # Whatever its checks, its compiler or its kernel raise: one more refusal.
        raise NotCovered([f"its trial failed ({type(error).__name__}: {error})"]) from error

    parts = zip(heads_of(spec, given), (law.q_norm_multipliers, law.k_norm_multipliers), strict=False)
    sizes = [
        partner_magnitude(normalise(x, multiplier, spec.eps), spec.rotary_dim, spec.is_neox) for x, multiplier in parts
    ]
    pool_size = torch.zeros(shape, dtype=torch.float64)
    pool_size[slots[[0, 2, 3]]] = sizes[1][[0, 2, 3]]
    found_heads, expected_heads = heads_of(spec, found), heads_of(spec, expected)
    wrong = sum(outside(BOUND, *x) for x in zip(found_heads[:2], expected_heads[:2], sizes, strict=True))
    wrong += outside(COPY, found_heads[2], expected_heads[2], torch.zeros_like(sizes[1]))
    wrong += outside(BOUND, found_k_pool, law.pools[0], pool_size)
    wrong += outside(COPY, found_v_pool, law.pools[1], torch.zeros_like(pool_size))
    if wrong:
        raise NotCovered([f"its trial put {wrong} elements out of bounds"])


def _spec_refusals(spec: QKNormRopeSpec) -> list[str]:
    reasons = []
    if spec.pool_layout != "nhd":
        reasons.append(f"pool layout {spec.pool_layout} is not covered, only nhd")
    if spec.qkv_dtype != torch.bfloat16:
        reasons.append(f"qkv dtype {spec.qkv_dtype} is not covered, only bfloat16")
    if spec.pool_is_fp8:
        reasons.append(f"fp8 pool ({spec.pool_dtype}) is not covered: it converts without clamping")
    elif spec.pool_dtype != spec.qkv_dtype:
        reasons.append(f"pool dtype {spec.pool_dtype} differs from qkv dtype {spec.qkv_dtype}")
    if spec.q_fp8_dtype is not None:
        reasons.append("an fp8 query is not covered")
    if spec.head_dim & (spec.head_dim - 1):
        reasons.append(f"head_dim {spec.head_dim} is no power of two")
    if spec.num_q_heads % spec.num_kv_heads:
        reasons.append(f"{spec.num_q_heads} query heads are no multiple of {spec.num_kv_heads} KV heads")
    return reasons


BACKEND = Backend("aiter", refusals, build)
