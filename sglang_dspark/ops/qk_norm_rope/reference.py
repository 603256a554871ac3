"""The law of the query block's op, one token at a time in plain torch: the oracle of every backend.

For each token, in float32 unless it says ROUND, which is to the qkv dtype:

    Q, K:  n = ROUND(x * (1 / sqrt(mean(x^2 over D) + eps)) * multiplier)
           first R dims: rotate n by the position's cos and sin, then ROUND; back to where x was
    K, V:  also into the pool's row `slot`, unless the slot is negative or there are no slots;
           fp8 pool: divide by the scale, clamp to the format's finite maximum, convert
    Q:     where asked for, also in fp8, the same step with its own scale

Each step is the context KV writer's own (`context_kv/reference.py`), so a token's K and V are the same bytes in the
pool, whether they were written as context or as block.

Q of every token is used, stored or not, so every position must be inside the table: a negative slot excuses nothing,
where the context writer skips the whole token.
"""

from __future__ import annotations

import torch

from sglang_dspark.ops.context_kv.reference import normalise, rotate, to_pool
from sglang_dspark.ops.qk_norm_rope.rows import check_rows, heads_of, outside_error
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables


def run(
    spec: QKNormRopeSpec,
    tables: QKNormRopeTables,
    qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] qkv_dtype
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor | None,  # [T] int64
    q_fp8_out: torch.Tensor | None = None,  # [T, Hq, D] q_fp8_dtype
) -> None:
    """Norm and rotate Q and K in place, and store K and V. Every byte of qkv outside Q and K stays, like every slot."""
    check_rows(spec, tables, qkv, positions, slots, q_fp8_out)
    q, k, v = heads_of(spec, qkv)
    for token in range(qkv.shape[0]):
        position, slot = int(positions[token]), -1 if slots is None else int(slots[token])
        if not 0 <= position < tables.num_positions:
            raise outside_error("position", token, position, tables)
        if slots is not None and slot >= tables.num_slots:
            raise outside_error("slot", token, slot, tables)
        cos, sin = tables.cos_sin[position].float().chunk(2)
        q[token] = rotate(normalise(q[token], tables.q_norm_multipliers, spec.eps), cos, sin, spec.is_neox)
        k[token] = rotate(normalise(k[token], tables.k_norm_multipliers, spec.eps), cos, sin, spec.is_neox)
        if q_fp8_out is not None and spec.q_fp8_dtype is not None:
            q_fp8_out[token] = to_pool(q[token], spec.q_fp8_dtype, spec.q_scale or 1.0)
        if slot >= 0:
            for pool, values, scale in zip(tables.pools, (k, v), spec.pool_scales, strict=True):
                pool[slot] = to_pool(values[token], spec.pool_dtype, scale)
