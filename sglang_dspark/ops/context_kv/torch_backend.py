"""The context KV writer in torch operations, vectorised over tokens and layers.

What serves on a CPU, and the last resort on a GPU. The rounding points are the law's (`reference.py`).

The two device types need two ways to skip a row. On a CPU the written rows are picked out first, which also lets a
position outside the table be an error. On a GPU that would wait for the device (the number of rows is data) and could
not be captured in a graph, so there every row is stored and skipped rows repeat a written one: see `_write_masked`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_dspark.ops.context_kv.rows import check_rows, written_rows
from sglang_dspark.ops.context_kv.spec import ContextKVSpec, ContextKVTables
from sglang_dspark.ops.dispatch import Backend
from sglang_dspark.platforms import Platform


@dataclass(frozen=True, eq=False)
class TorchWriter:
    """A writer bound to its tables; calling it writes one batch of rows.

    ``waits_for_device`` picks the CPU's way of skipping rows; the other one works on any device.
    """

    spec: ContextKVSpec
    tables: ContextKVTables
    waits_for_device: bool

    def __call__(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] kv_dtype
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
        commit_lens: torch.Tensor | None = None,  # [B] int32 or int64, T = B * W
    ) -> None:
        """Write K and V of every layer into the pools, in place."""
        check_rows(self.spec, self.tables.cos_sin.device, kv, positions, slots, commit_lens)
        if kv.shape[0] == 0:
            return
        written = written_rows(slots, commit_lens)
        if self.waits_for_device:
            self._write_picked(kv, positions, slots, written)
        else:
            self._write_masked(kv, positions, slots, written)

    def _write_picked(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] kv_dtype
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
        written: torch.Tensor,  # [T] bool
    ) -> None:
        rows = written.nonzero()[:, 0]
        positions, slots = positions[rows], slots[rows]
        _check_range("position", positions, rows, self.tables.num_positions, "the cos/sin table")
        _check_range("slot", slots, rows, self.tables.num_slots, "the pools")
        kv = kv[rows]
        k = normalised_and_rotated(self.spec, self.tables, kv[:, :, 0], positions)
        for layer in range(self.spec.num_layers):
            self.tables.k_pools[layer][slots] = k[:, layer]
            self.tables.v_pools[layer][slots] = kv[:, layer, 1]

    def _write_masked(
        self,
        kv: torch.Tensor,  # [T, L, 2, H, D] kv_dtype
        positions: torch.Tensor,  # [T] int64
        slots: torch.Tensor,  # [T] int64
        written: torch.Tensor,  # [T] bool
    ) -> None:
        # A skipped row stores what the first written row stores, where that one stores it: the same bytes twice, so
        # the order does not matter. Storing its own slot's old value instead would race with the row that owns it.
        # With no written row at all, every row stores slot 0's old bytes into slot 0.
        written = written & (slots < self.tables.num_slots)
        any_written = written.any()
        first_written = written.to(torch.int32).argmax()
        source = torch.where(written, torch.arange(slots.shape[0], device=slots.device), first_written)
        slots = torch.where(any_written, slots[source], 0)
        positions = positions[source].clamp(0, self.tables.num_positions - 1)
        kv = kv[source]
        k = normalised_and_rotated(self.spec, self.tables, kv[:, :, 0], positions)
        for layer in range(self.spec.num_layers):
            k_pool, v_pool = self.tables.k_pools[layer], self.tables.v_pools[layer]
            k_pool.index_put_((slots,), torch.where(any_written, k[:, layer], k_pool[:1]))
            v_pool.index_put_((slots,), torch.where(any_written, kv[:, layer, 1], v_pool[:1]))


def normalised_and_rotated(
    spec: ContextKVSpec,
    tables: ContextKVTables,
    k: torch.Tensor,  # [T, L, H, D] kv_dtype
    positions: torch.Tensor,  # [T] int64, inside the table
) -> torch.Tensor:
    """The K that the pools store: [T, L, H, D] kv_dtype."""
    x = k.float()
    inverse_rms = 1.0 / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + spec.eps)
    normalised = (x * inverse_rms * tables.norm_multipliers[:, None, :]).to(spec.kv_dtype)

    half = spec.rotary_dim // 2
    cos_sin = tables.cos_sin[positions].float()[:, None, None, :]
    cos, sin = cos_sin[..., :half], cos_sin[..., half:]
    rotary = normalised[..., : spec.rotary_dim].float()
    # Split into partners without copying: NeoX pairs (i, i + R/2), interleaved pairs (2i, 2i + 1).
    pairs = rotary.unflatten(-1, (2, half) if spec.is_neox else (half, 2))
    first, second = pairs.unbind(-2 if spec.is_neox else -1)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-2 if spec.is_neox else -1)
    normalised[..., : spec.rotary_dim] = turned.flatten(-2).to(spec.kv_dtype)
    return normalised


def _check_range(
    what: str,
    values: torch.Tensor,  # [n] int64
    rows: torch.Tensor,  # [n] int64, the row each value belongs to
    limit: int,
    of_what: str,
) -> None:
    outside = (values < 0) | (values >= limit)
    if bool(outside.any()):
        first = int(outside.nonzero()[0, 0])
        raise IndexError(
            f"context_kv: row {int(rows[first])} asks for {what} {int(values[first])}, outside {of_what} "
            f"(0 to {limit - 1}): pass a {what} inside, or give the row a negative slot"
        )


def refusals(platform: Platform, spec: ContextKVSpec) -> list[str]:
    """Why this backend does not cover the case. It runs wherever torch does."""
    return spec.plain_pool_refusals()


def build(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> TorchWriter:
    """Bind the writer to its tables."""
    return TorchWriter(spec, tables, waits_for_device=platform.device_type == "cpu")


BACKEND = Backend("torch", refusals, build)
