"""What the context KV writer is bound to: the facts of the draft and the pool (spec), and the tensors (tables).

Shape letters, here and in the backends: T tokens, L draft layers, H KV heads of this rank, D head dimension,
R rotary dimension, P positions in the cos/sin table, B rows of commit lengths, W = T / B columns a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sglang_dspark.ops.tensor_checks import check_one_of, check_tensor
from sglang_dspark.platforms import Platform

FLOAT_DTYPES = (torch.bfloat16, torch.float32)
FP8_DTYPES = {"e4m3fn": torch.float8_e4m3fn, "e4m3fnuz": torch.float8_e4m3fnuz}
# The layouts SGLang 0.5.23 can give a KV pool. Only "nhd" is written; the others are refused, never mis-addressed.
# "block_scaled" is ours for pools with a scale of their own beside every few values (mxfp8, nvfp4, fp4).
POOL_LAYOUTS = ("nhd", "hnd", "vectorized_5d", "page_major", "block_scaled")


@dataclass(frozen=True)
class ContextKVSpec:
    """The shapes, types and constants of a context KV writer.

    ``eps`` is the K norm's; ``is_neox`` says that rotary partners are i and i + R/2 (else 2i and 2i + 1).
    ``slots_per_layer``: a call's slots are [L, T], since layers with a window of their own keep other rows.
    ``k_scales`` and ``v_scales`` hold one factor a layer for an fp8 pool, which stores value / scale; None means 1.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    is_neox: bool
    eps: float
    kv_dtype: torch.dtype
    pool_dtype: torch.dtype
    cos_sin_dtype: torch.dtype = torch.float32
    pool_layout: str = "nhd"
    k_scales: tuple[float, ...] | None = None
    v_scales: tuple[float, ...] | None = None
    slots_per_layer: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"context_kv {name}: expected at least 1, found {getattr(self, name)}: pass the draft's"
                )
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"context_kv rotary_dim: expected an even number from 2 to head_dim {self.head_dim}, "
                f"found {self.rotary_dim}: take it from the draft's rotary embedding"
            )
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise ValueError(f"context_kv eps: expected a finite number >= 0, found {self.eps}: take the K norm's")
        check_one_of("context_kv kv_dtype", self.kv_dtype, FLOAT_DTYPES)
        check_one_of("context_kv pool_dtype", self.pool_dtype, (*FLOAT_DTYPES, *FP8_DTYPES.values()))
        check_one_of("context_kv cos_sin_dtype", self.cos_sin_dtype, FLOAT_DTYPES)
        check_one_of("context_kv pool_layout", self.pool_layout, POOL_LAYOUTS)
        self._check_scales()

    def _check_scales(self) -> None:
        if (self.k_scales is None) != (self.v_scales is None):
            raise ValueError("context_kv scales: found only one of k_scales and v_scales: pass both, or neither")
        if self.k_scales is None or self.v_scales is None:
            return
        if self.pool_dtype not in FP8_DTYPES.values():
            raise ValueError(
                f"context_kv scales: only an fp8 pool has them, found pool_dtype {self.pool_dtype}: drop them"
            )
        for name, scales in (("k_scales", self.k_scales), ("v_scales", self.v_scales)):
            if len(scales) != self.num_layers or not all(math.isfinite(s) and s > 0 for s in scales):
                raise ValueError(
                    f"context_kv {name}: expected {self.num_layers} finite numbers > 0, one a layer, found {scales}"
                )

    @property
    def has_scales(self) -> bool:
        """Whether the pool's values are divided by a scale before they are stored."""
        return self.k_scales is not None

    def plain_pool_refusals(self) -> list[str]:
        """Why a backend that only copies rows of the kv dtype into an NHD pool does not cover this spec."""
        reasons = []
        if self.pool_layout != "nhd":
            reasons.append(f"pool layout {self.pool_layout} is not covered, only nhd")
        if self.pool_dtype in FP8_DTYPES.values():
            reasons.append(f"fp8 pool ({self.pool_dtype}) is not covered")
        elif self.pool_dtype != self.kv_dtype:
            reasons.append(f"pool dtype {self.pool_dtype} differs from kv dtype {self.kv_dtype}")
        if self.slots_per_layer:
            reasons.append("slots per layer are not covered")
        return reasons


@dataclass(frozen=True, eq=False)
class ContextKVTables:
    """The tensors a writer is bound to. It keeps them alive, and reads and writes them in place.

    Pools are NHD rows with any row stride, so the K and V halves of one allocation do.
    """

    k_pools: tuple[torch.Tensor, ...]  # L x [slots, H, D] pool_dtype
    v_pools: tuple[torch.Tensor, ...]  # L x [slots, H, D] pool_dtype
    norm_multipliers: torch.Tensor  # [L, D] fp32, 1 + w already formed
    cos_sin: torch.Tensor  # [P, R] cos_sin_dtype, cos in the first R/2 columns

    @property
    def num_slots(self) -> int:
        """Rows in every pool."""
        return self.k_pools[0].shape[0]

    @property
    def num_positions(self) -> int:
        """Rows in the cos/sin table."""
        return self.cos_sin.shape[0]

    def row_alignment_bytes(self, widest: int = 16) -> int:
        """The most bytes, up to the widest access of one lane, that divide the address of every pool row."""
        pools = (*self.k_pools, *self.v_pools)
        strides = (pool.stride(0) * pool.element_size() for pool in pools)
        return math.gcd(widest, *(pool.data_ptr() for pool in pools), *strides)


def check_tables(platform: Platform, spec: ContextKVSpec, tables: ContextKVTables) -> None:
    """Raise ValueError when the tables are not what the spec says, on the device that the platform says."""
    device = tables.cos_sin.device
    if device.type != platform.device_type:
        raise ValueError(
            f"context_kv tables: platform {platform.name} works on {platform.device_type!r}, found them on {device}: "
            "move them, or choose for the platform of their device"
        )
    check_tensor("context_kv cos_sin", tables.cos_sin, (None, spec.rotary_dim), spec.cos_sin_dtype, device)
    check_tensor(
        "context_kv norm_multipliers", tables.norm_multipliers, (spec.num_layers, spec.head_dim), torch.float32, device
    )
    for name, pools in (("k_pools", tables.k_pools), ("v_pools", tables.v_pools)):
        if len(pools) != spec.num_layers:
            raise ValueError(f"context_kv {name}: expected {spec.num_layers}, one a layer, found {len(pools)}")
        for layer, pool in enumerate(pools):
            shape = (tables.num_slots, spec.num_kv_heads, spec.head_dim)
            check_tensor(f"context_kv {name}[{layer}]", pool, shape, spec.pool_dtype, device)
    if tables.num_positions < 1 or tables.num_slots < 1:
        raise ValueError(
            f"context_kv tables: expected at least one position and one slot, found {tables.num_positions} positions "
            f"and {tables.num_slots} slots"
        )
