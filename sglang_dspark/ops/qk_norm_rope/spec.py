"""What the query block's op is bound to: the facts of a draft layer and its pool (spec), and the tensors (tables).

Shape letters, here and in the backends: T tokens, Hq query and Hkv KV heads of this rank, D head dimension, R rotary
dimension, P positions in the cos/sin table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sglang_dspark.ops.context_kv.spec import FLOAT_DTYPES, FP8_DTYPES, POOL_LAYOUTS
from sglang_dspark.ops.tensor_checks import check_one_of, check_tensor, check_vector
from sglang_dspark.platforms import Platform


@dataclass(frozen=True)
class QKNormRopeSpec:
    """The shapes, types and constants of one draft layer's query path.

    ``eps`` is that of both norms; ``is_neox`` says that rotary partners are i and i + R/2 (else 2i and 2i + 1).
    ``k_scale`` and ``v_scale`` belong to an fp8 pool, which stores value / scale; None means 1. ``q_fp8_dtype`` says
    that calls may ask for a query in fp8 as well, divided by ``q_scale``. Without a pool ``pool_dtype`` is not used.
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    is_neox: bool
    eps: float
    qkv_dtype: torch.dtype
    pool_dtype: torch.dtype
    cos_sin_dtype: torch.dtype = torch.float32
    pool_layout: str = "nhd"
    k_scale: float | None = None
    v_scale: float | None = None
    q_fp8_dtype: torch.dtype | None = None
    q_scale: float | None = None

    def __post_init__(self) -> None:
        for name in ("num_q_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"qk_norm_rope {name}: expected at least 1, found {getattr(self, name)}: pass the draft's"
                )
        if self.rotary_dim % 2 or not 2 <= self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"qk_norm_rope rotary_dim: expected an even number from 2 to head_dim {self.head_dim}, "
                f"found {self.rotary_dim}: take it from the draft's rotary embedding"
            )
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise ValueError(f"qk_norm_rope eps: expected a finite number >= 0, found {self.eps}: take the norms'")
        fp8 = tuple(FP8_DTYPES.values())
        check_one_of("qk_norm_rope qkv_dtype", self.qkv_dtype, FLOAT_DTYPES)
        check_one_of("qk_norm_rope pool_dtype", self.pool_dtype, (*FLOAT_DTYPES, *fp8))
        check_one_of("qk_norm_rope cos_sin_dtype", self.cos_sin_dtype, FLOAT_DTYPES)
        check_one_of("qk_norm_rope pool_layout", self.pool_layout, POOL_LAYOUTS)
        check_one_of("qk_norm_rope q_fp8_dtype", self.q_fp8_dtype, (None, *fp8))
        self._check_scales()

    def _check_scales(self) -> None:
        if (self.k_scale is None) != (self.v_scale is None):
            raise ValueError("qk_norm_rope scales: found only one of k_scale and v_scale: pass both, or neither")
        if self.k_scale is not None and not self.pool_is_fp8:
            raise ValueError(
                f"qk_norm_rope scales: only an fp8 pool has them, found pool_dtype {self.pool_dtype}: drop them"
            )
        if self.q_scale is not None and self.q_fp8_dtype is None:
            raise ValueError("qk_norm_rope q_scale: only an fp8 query has one, found q_fp8_dtype None: drop it")
        for name in ("k_scale", "v_scale", "q_scale"):
            scale = getattr(self, name)
            if scale is not None and not (math.isfinite(scale) and scale > 0):
                raise ValueError(f"qk_norm_rope {name}: expected a finite number > 0, found {scale}")

    @property
    def pool_is_fp8(self) -> bool:
        """Whether the pool stores value / scale in 8 bits."""
        return self.pool_dtype in FP8_DTYPES.values()

    @property
    def num_heads(self) -> int:
        """Rows of D in a token of qkv: Hq query heads, then Hkv of K, then Hkv of V."""
        return self.num_q_heads + 2 * self.num_kv_heads

    @property
    def pool_scales(self) -> tuple[float, float]:
        """What K and V are divided by on their way into an fp8 pool."""
        return self.k_scale or 1.0, self.v_scale or 1.0

    def pool_refusals(self) -> list[str]:
        """Why a backend for NHD pools of the qkv dtype, or of fp8, does not cover this spec."""
        reasons = []
        if self.pool_layout != "nhd":
            reasons.append(f"pool layout {self.pool_layout} is not covered, only nhd")
        if not self.pool_is_fp8 and self.pool_dtype != self.qkv_dtype:
            reasons.append(f"pool dtype {self.pool_dtype} differs from qkv dtype {self.qkv_dtype}")
        return reasons


@dataclass(frozen=True, eq=False)
class QKNormRopeTables:
    """The tensors of one layer. The op keeps them alive, and reads and writes them in place.

    Pools are NHD rows with any row stride, so the K and V halves of one allocation do. Both are None where a layer's
    block is never stored; calls then have no slots.
    """

    q_norm_multipliers: torch.Tensor  # [D] fp32, 1 + w already formed
    k_norm_multipliers: torch.Tensor  # [D] fp32, 1 + w already formed
    cos_sin: torch.Tensor  # [P, R] cos_sin_dtype, cos in the first R/2 columns
    k_pool: torch.Tensor | None = None  # [slots, Hkv, D] pool_dtype
    v_pool: torch.Tensor | None = None  # [slots, Hkv, D] pool_dtype

    @property
    def num_slots(self) -> int:
        """Rows in each pool, 0 without pools."""
        return 0 if self.k_pool is None else self.k_pool.shape[0]

    @property
    def num_positions(self) -> int:
        """Rows in the cos/sin table."""
        return self.cos_sin.shape[0]

    @property
    def pools(self) -> tuple[torch.Tensor, ...]:
        """K and V, or nothing."""
        return () if self.k_pool is None or self.v_pool is None else (self.k_pool, self.v_pool)

    def pool_alignment_bytes(self, widest: int = 16) -> int:
        """The most bytes, up to the widest access of one lane, that divide the address of every pool row."""
        strides = (pool.stride(0) * pool.element_size() for pool in self.pools)
        return math.gcd(widest, *(pool.data_ptr() for pool in self.pools), *strides)


def check_tables(platform: Platform, spec: QKNormRopeSpec, tables: QKNormRopeTables) -> None:
    """Raise ValueError when the tables are not what the spec says, on the device that the platform says."""
    device = tables.cos_sin.device
    if device.type != platform.device_type:
        raise ValueError(
            f"qk_norm_rope tables: platform {platform.name} works on {platform.device_type!r}, found them on {device}: "
            "move them, or choose for the platform of their device"
        )
    check_tensor("qk_norm_rope cos_sin", tables.cos_sin, (None, spec.rotary_dim), spec.cos_sin_dtype, device)
    for name in ("q_norm_multipliers", "k_norm_multipliers"):
        check_vector(f"qk_norm_rope {name}", getattr(tables, name), spec.head_dim, torch.float32, device)
    if (tables.k_pool is None) != (tables.v_pool is None):
        raise ValueError("qk_norm_rope pools: found only one of k_pool and v_pool: pass both, or neither")
    for name, pool in zip(("k_pool", "v_pool"), tables.pools, strict=False):
        shape = (tables.num_slots, spec.num_kv_heads, spec.head_dim)
        check_tensor(f"qk_norm_rope {name}", pool, shape, spec.pool_dtype, device)
    if tables.num_positions < 1 or (tables.pools and tables.num_slots < 1):
        raise ValueError(
            "qk_norm_rope tables: expected at least one position, and one slot in a pool, "
            f"found {tables.num_positions} positions and {tables.num_slots} slots"
        )
