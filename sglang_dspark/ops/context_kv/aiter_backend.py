"""The context KV writer made of AITER's functions, AMD's own library: a launch a layer or more, where ours has one.

No function of AITER spans layers or knows commit lengths. So a call works layer by layer, and what the law does not
write (a rejected column, a slot beyond the pools) gets slot -1, which every candidate of `aiter_candidates.py` skips.
Some read a skipped row's cos and sin all the same, so positions are clamped first.

The first candidate without refusals is bound, once a trial has found it within its bound.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from sglang_dspark.ops.aiter import signatures
from sglang_dspark.ops.aiter.signatures import Call, Unusable
from sglang_dspark.ops.aiter.trial import COPY, outside, partner_magnitude
from sglang_dspark.ops.aiter.weights import gemma_weights
from sglang_dspark.ops.context_kv import reference
from sglang_dspark.ops.context_kv.aiter_candidates import CANDIDATES, Candidate, LayerWrite, bound_of
from sglang_dspark.ops.context_kv.rows import check_rows, written_rows
from sglang_dspark.ops.context_kv.spec import FP8_DTYPES, ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import Backend, NotCovered
from sglang_dspark.platforms import Platform


@dataclass(frozen=True, eq=False)
class AiterWriter:
    """A writer bound to its tables, through the candidate of that name."""

    spec: ContextKVSpec
    tables: ContextKVTables
    candidate: str
    weights: torch.Tensor  # [L, D], what AITER reads in the multipliers' place
    write: LayerWrite

    def refresh(self) -> None:
        """Take over the norms' new multipliers."""
        self.weights.copy_(gemma_weights(self.tables.norm_multipliers, self.spec.kv_dtype))

    def __call__(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] bf16
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64, or [L, T] with slots per layer
        commit_lens: torch.Tensor | None = None,  # [B] int32 or int64, T = B * W
    ) -> None:
        """Write K and V of every layer into the pools, in place. Nothing waits for the device."""
        check_rows(self.spec, self.tables.cos_sin.device, kv, positions, slots, commit_lens)
        if kv.shape[0] == 0:
            return
        written = written_rows(torch.zeros_like(positions), commit_lens) & (slots < self.tables.num_slots)
        slots = torch.where(written, slots, -1).expand(self.spec.num_layers, -1)
        self.write(kv, positions.clamp(0, self.tables.num_positions - 1), slots)


def refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    """Why this backend does not cover the case: AITER is imported only when nothing else stands against it."""
    if platform.name != "amd":
        return ["needs an AMD GPU"]
    if reasons := _spec_refusals(platform, spec):
        return reasons
    open_candidates = [candidate for candidate in CANDIDATES if not candidate.refusals(spec)]
    if open_candidates:
        try:
            signatures.load("aiter")
        except Unusable as unusable:
            return list(unusable.reasons)
    if any(not _candidate_refusals(candidate, spec) for candidate in open_candidates):
        return []
    return [reason for candidate in CANDIDATES for reason in _candidate_refusals(candidate, spec)]


def build(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> AiterWriter:
    """Bind the first candidate that covers spec and tables and passes its trial."""
    refused: list[str] = []
    for candidate in CANDIDATES:
        reasons = _candidate_refusals(candidate, spec) or _named(candidate, candidate.table_refusals(spec, tables))
        if not reasons:
            try:
                writer = _bind(candidate, spec, tables)
            except NotCovered as refusal:
                reasons = _named(candidate, refusal.reasons)
            else:
                told = f" (refused: {'; '.join(refused)})" if refused else ""
                logging.getLogger(__name__).info("context_kv's aiter backend calls %s%s", candidate.name, told)
                return writer
        refused += reasons
    raise NotCovered(refused)


def _bind(candidate: Candidate, spec: ContextKVSpec, tables: ContextKVTables) -> AiterWriter:
    calls = signatures.find_all(candidate.wanted)
    _try(candidate, spec, tables, calls)
    return _bound(candidate, spec, tables, calls)


def _bound(candidate: Candidate, spec: ContextKVSpec, tables: ContextKVTables, calls: tuple[Call, ...]) -> AiterWriter:
    weights = gemma_weights(tables.norm_multipliers, spec.kv_dtype)
    return AiterWriter(spec, tables, candidate.name, weights, candidate.bind(spec, tables, weights, *calls))


def _try(candidate: Candidate, spec: ContextKVSpec, tables: ContextKVTables, calls: tuple[Call, ...]) -> None:
    """Write five rows into pools of our own, two of them skipped; raises `NotCovered` when the law says otherwise.

    It also has AITER compile the kernels, which it does at a function's first call: now, not under graph capture.
    """
    device, shape = tables.cos_sin.device, (8, spec.num_kv_heads, spec.head_dim)
    pools = [torch.zeros(shape, device=device).to(spec.pool_dtype) for _ in range(2 * spec.num_layers)]
    own = ContextKVTables(tuple(pools[0::2]), tuple(pools[1::2]), tables.norm_multipliers, tables.cos_sin[:5])
    generator = torch.Generator().manual_seed(0)
    kv = torch.randn(5, spec.num_layers, 2, *shape[1:], generator=generator).to(spec.kv_dtype)
    positions = torch.tensor([3, 1, 2, 0, 4]).clamp(max=own.num_positions - 1)
    slots, commit_lens = torch.tensor([5, -1, 2, 0, 7]), torch.tensor([1, 1, 1, 1, 0])
    one_spec = replace(spec, slots_per_layer=False)
    writer = _bound(candidate, one_spec, own, calls)
    try:
        writer(*(rows.to(device) for rows in (kv, positions, slots, commit_lens)))
        found = [pool.cpu() for pool in pools]
    except Exception as error:  # Whatever its checks, its compiler or its kernel raise: one more refusal.
        raise NotCovered([f"its trial failed ({type(error).__name__}: {error})"]) from error

    law = ContextKVTables(
        tuple(torch.zeros(shape).to(spec.pool_dtype) for _ in own.k_pools),
        tuple(torch.zeros(shape).to(spec.pool_dtype) for _ in own.v_pools),
        own.norm_multipliers.cpu(),
        own.cos_sin.cpu(),
    )
    reference.write(one_spec, law, kv, positions, slots, commit_lens)
    bound, wrong = bound_of(candidate.name, spec), 0
    v_bound = bound if spec.pool_dtype in FP8_DTYPES.values() else COPY
    for layer, (k, v) in enumerate(zip(law.k_pools, law.v_pools, strict=True)):
        k_size, v_size = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        for row in (0, 2, 3):
            normalised = reference.normalise(kv[row, layer, 0], law.norm_multipliers[layer], spec.eps)
            k_size[slots[row]] = partner_magnitude(normalised, spec.rotary_dim, spec.is_neox)
            v_size[slots[row]] = kv[row, layer, 1].double().abs()
        wrong += outside(bound, found[2 * layer], k, k_size, spec.k_scales[layer] if spec.k_scales else 1.0)
        wrong += outside(v_bound, found[2 * layer + 1], v, v_size, spec.v_scales[layer] if spec.v_scales else 1.0)
    if wrong:
        raise NotCovered([f"its trial put {wrong} elements out of bounds"])


def _spec_refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    reasons = []
    if spec.pool_layout != "nhd":
        reasons.append(f"pool layout {spec.pool_layout} is not covered, only nhd")
    if spec.kv_dtype != torch.bfloat16:
        reasons.append(f"kv dtype {spec.kv_dtype} is not covered, only bfloat16")
    if spec.pool_dtype not in (spec.kv_dtype, FP8_DTYPES[platform.fp8_format]):
        reasons.append(f"pool dtype {spec.pool_dtype} is not covered, only kv's and {platform.arch}'s own fp8")
    return reasons


def _candidate_refusals(candidate: Candidate, spec: ContextKVSpec) -> list[str]:
    if reasons := candidate.refusals(spec):
        return _named(candidate, reasons)
    try:
        signatures.find_all(candidate.wanted)
    except Unusable as unusable:
        return _named(candidate, unusable.reasons)
    return []


def _named(candidate: Candidate, reasons: list[str] | tuple[str, ...]) -> list[str]:
    return [f"{candidate.name}: {reason}" for reason in reasons]


BACKEND = Backend("aiter", refusals, build)
