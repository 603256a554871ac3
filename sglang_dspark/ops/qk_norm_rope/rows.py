"""The rows of one call, and their contract."""

from __future__ import annotations

import torch

from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.ops.tensor_checks import check_tensor, check_vector


def check_rows(
    spec: QKNormRopeSpec,
    tables: QKNormRopeTables,
    qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] qkv_dtype
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor | None,  # [T] int64
    q_fp8_out: torch.Tensor | None,  # [T, Hq, D] q_fp8_dtype
) -> None:
    """Raise ValueError on a broken contract. Reads shapes, types and strides only: nothing waits for the device."""
    tokens, width = qkv.shape[0], spec.num_heads * spec.head_dim
    device = tables.cos_sin.device
    check_tensor("qk_norm_rope qkv", qkv, (tokens, width), spec.qkv_dtype, device)
    if tokens > 1 and qkv.stride(0) < width:
        raise ValueError(
            f"qk_norm_rope qkv: expected tokens at least {width} elements apart, found {qkv.stride(0)}: they are "
            "written in place, copy them"
        )
    check_vector("qk_norm_rope positions", positions, tokens, torch.int64, device)
    if slots is not None:
        if not tables.pools:
            raise ValueError(
                "qk_norm_rope slots: found slots, and no pools in the tables: pass slots=None, or bind pools"
            )
        check_vector("qk_norm_rope slots", slots, tokens, torch.int64, device)
    if q_fp8_out is not None:
        if spec.q_fp8_dtype is None:
            raise ValueError("qk_norm_rope q_fp8_out: the spec has no q_fp8_dtype: name one, or pass None")
        shape = (tokens, spec.num_q_heads, spec.head_dim)
        check_tensor("qk_norm_rope q_fp8_out", q_fp8_out, shape, spec.q_fp8_dtype, device)


def heads_of(
    spec: QKNormRopeSpec,
    qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] qkv_dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of Q [T, Hq, D], K [T, Hkv, D] and V [T, Hkv, D] in qkv."""
    heads = qkv.unflatten(1, (spec.num_heads, spec.head_dim))
    first_v = spec.num_q_heads + spec.num_kv_heads
    return heads[:, : spec.num_q_heads], heads[:, spec.num_q_heads : first_v], heads[:, first_v:]


def outside_error(what: str, row: int, value: int, tables: QKNormRopeTables) -> IndexError:
    """The error for a "position" outside the cos/sin table, or for a "slot" beyond the pools."""
    of_what, limit = ("the pools", tables.num_slots) if what == "slot" else ("the cos/sin table", tables.num_positions)
    excuse = "" if what == "slot" else "; Q of every row is used, a negative slot excuses none"
    return IndexError(
        f"qk_norm_rope: row {row} asks for {what} {value}, outside {of_what} (0 to {limit - 1}): "
        f"pass a {what} inside{excuse}"
    )
