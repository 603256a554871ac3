"""The query block's op in torch operations, vectorised over tokens: what serves on a CPU, and a GPU's last resort.

The rounding points are the law's (`reference.py`). As in the context writer's torch backend, the two device types need
two ways to skip a token's store: a CPU picks the stored tokens out, and a slot or position outside is an error; a GPU
must not wait for the device, so there every token stores and skipped ones repeat a stored one (`_store_masked`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_dspark.ops.context_kv.reference import to_pool
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.ops.qk_norm_rope.rows import check_rows, heads_of, outside_error
from sglang_dspark.ops.qk_norm_rope.spec import QKNormRopeSpec, QKNormRopeTables
from sglang_dspark.platforms import Platform


@dataclass(frozen=True, eq=False)
class TorchQKNormRope:
    """The op bound to its tables; calling it works on one batch of tokens.

    ``waits_for_device`` picks the CPU's way of skipping tokens; the other one works on any device.
    """

    spec: QKNormRopeSpec
    tables: QKNormRopeTables
    waits_for_device: bool

    def __call__(
        self,
        qkv: torch.Tensor,  # [T, (Hq + 2 * Hkv) * D] qkv_dtype
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor | None,  # [T] int64
        q_fp8_out: torch.Tensor | None = None,  # [T, Hq, D] q_fp8_dtype
    ) -> None:
        """Norm and rotate Q and K in place, and store K and V."""
        spec, tables = self.spec, self.tables
        check_rows(spec, tables, qkv, positions, slots, q_fp8_out)
        if qkv.shape[0] == 0:
            return
        if self.waits_for_device:
            _check_inside(tables, positions, slots)
        else:
            positions = positions.clamp(0, tables.num_positions - 1)
        q, k, v = heads_of(spec, qkv)
        cos, sin = tables.cos_sin[positions].float()[:, None].chunk(2, dim=-1)
        q.copy_(normalised_and_rotated(spec, q, tables.q_norm_multipliers, cos, sin))
        k.copy_(normalised_and_rotated(spec, k, tables.k_norm_multipliers, cos, sin))
        if q_fp8_out is not None and spec.q_fp8_dtype is not None:
            q_fp8_out.copy_(to_pool(q, spec.q_fp8_dtype, spec.q_scale or 1.0))
        if slots is not None:
            store = _store_picked if self.waits_for_device else _store_masked
            for pool, values, scale in zip(tables.pools, (k, v), spec.pool_scales, strict=True):
                # As bytes: not every device indexes 8-bit floats.
                stored = to_pool(values, spec.pool_dtype, scale)
                store(pool.view(torch.uint8), stored.view(torch.uint8), slots)


def normalised_and_rotated(
    spec: QKNormRopeSpec,
    heads: torch.Tensor,  # [T, H, D] qkv_dtype
    multiplier: torch.Tensor,  # [D] fp32
    cos: torch.Tensor,  # [T, 1, R/2] fp32
    sin: torch.Tensor,  # [T, 1, R/2] fp32
) -> torch.Tensor:
    """What the law makes of Q or K: [T, H, D] qkv_dtype."""
    x = heads.float()
    inverse_rms = 1.0 / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + spec.eps)
    normalised = (x * inverse_rms * multiplier).to(spec.qkv_dtype)

    half = spec.rotary_dim // 2
    rotary = normalised[..., : spec.rotary_dim].float()
    # Split into partners without copying: NeoX pairs (i, i + R/2), interleaved pairs (2i, 2i + 1).
    axis = -2 if spec.is_neox else -1
    first, second = rotary.unflatten(-1, (2, half) if spec.is_neox else (half, 2)).unbind(axis)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=axis)
    normalised[..., : spec.rotary_dim] = turned.flatten(-2).to(spec.qkv_dtype)
    return normalised


def _store_picked(
    pool: torch.Tensor,  # [slots, Hkv, D bytes] uint8
    values: torch.Tensor,  # [T, Hkv, D bytes] uint8
    slots: torch.Tensor,  # [T] int64
) -> None:
    stored = slots >= 0
    pool[slots[stored]] = values[stored]


def _store_masked(
    pool: torch.Tensor,  # [slots, Hkv, D bytes] uint8
    values: torch.Tensor,  # [T, Hkv, D bytes] uint8
    slots: torch.Tensor,  # [T] int64
) -> None:
    # A skipped token stores what the first stored one stores, where that one stores it: the same bytes twice, so the
    # order does not matter. With none to store, every token stores slot 0's old bytes into slot 0.
    stored = (slots >= 0) & (slots < pool.shape[0])
    any_stored = stored.any()
    source = torch.where(stored, torch.arange(slots.shape[0], device=slots.device), stored.to(torch.int32).argmax())
    places = torch.where(any_stored, slots[source], 0)
    pool.index_put_((places,), torch.where(any_stored, values[source], pool[:1]))


def _check_inside(
    tables: QKNormRopeTables,
    positions: torch.Tensor,  # [T] int64
    slots: torch.Tensor | None,  # [T] int64
) -> None:
    outside = {"position": (positions < 0) | (positions >= tables.num_positions)}
    values = {"position": positions}
    if slots is not None:
        outside["slot"], values["slot"] = slots >= tables.num_slots, slots
    for what, rows in outside.items():
        if bool(rows.any()):
            row = int(rows.nonzero()[0, 0])
            raise outside_error(what, row, int(values[what][row]), tables)


def refusals(platform: Platform, spec: QKNormRopeSpec) -> list[str]:
    """Why this backend does not cover the case. It runs wherever torch does."""
    return spec.pool_refusals()


def build(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> TorchQKNormRope:
    """Bind the op to its tables."""
    return TorchQKNormRope(spec, tables, waits_for_device=platform.device_type == "cpu")


BACKEND = Backend("torch", refusals, build)
